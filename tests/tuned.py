"""Hold what `envmatrix tune` claims against an independent run: `nox -s selfbench -- --tune`.

A try is a search of a design, or of a program of one's own (`-- python train.py`), and then a run of its own of the
recipe that it confirmed and of the named recipes it knew. A try is good when that run shows the recipe to be faster
than the baseline by what was claimed (both intervals overlap), and no named recipe to be faster than it.

Tries lie in their folder (`--to DIR`), and `tries.jsonl` says which commit of the code ran each of them, and when. The
same command goes on: first with tries that were stopped or killed, wherever that was, then with further ones; nothing
that has ended is lost, and what is not over is not judged. `--tries 0` only judges again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from envmatrix.api import runs, tunes
from envmatrix.api.programs import Asked
from envmatrix.errors import EnvmatrixError, InputError
from envmatrix.matrix import Matrix
from envmatrix.matrix.extended import with_design
from envmatrix.runner.tuning_progress import watch_step
from envmatrix.stats.analysis import between, estimate
from envmatrix.stats.measurements import fold
from envmatrix.stats.tuning_steps import row_of
from envmatrix.store import RunFolder
from envmatrix.store.files import append_line, write_whole
from envmatrix.store.study import StudyFolder
from envmatrix.trials.requested import Overrides
from tests.precision import say

#: Tries that are wanted, how many of them must be good, and by how much a search may exceed its budget.
TRIES, GOOD, OVER = 10, 9, 1.05
_INDEPENDENT = "independent"
#: What of a searched design is none of an independent run's.
_OF_A_SEARCH = ("name", "description", "factors", "cumulative", "application", "reference_values", "race", "steady")
_ROOT = Path(__file__).parents[1]


def commit() -> str:
    """Return the commit of this checkout, with a + where files of it were changed since; '' where git cannot say."""
    try:
        said = [
            subprocess.run(["git", "-C", str(_ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{said[0]}{'+' if said[1] else ''}"


def is_searched(folder: Path) -> bool:
    """Say whether the search of a try is over: its answer is written then, and is none of an interrupted one."""
    file = folder / "tune.json"
    return file.exists() and not json.loads(file.read_text())["interrupted"]


def independent_of(folder: Path) -> RunFolder | None:
    """Return the independent run of a try, None where none was begun."""
    files = sorted((folder / _INDEPENDENT).glob("*/run.json"))
    return RunFolder(files[-1].parent) if files else None


def is_over(folder: Path) -> bool:
    """Say whether nothing of a try is left to run."""
    if not is_searched(folder) or not tunes.TuneResult(folder).settings:
        return is_searched(folder)
    found = independent_of(folder)
    if not found:
        return False
    plan = found.load().plan
    trials = Counter(trial.block for trial in found.trials(plan))
    return sum(count == len(plan.arms) for count in trials.values()) == plan.max_blocks


def search(chosen: argparse.Namespace, folder: Path) -> bool:
    """Search, or go on with it; say whether it is over."""
    if StudyFolder(folder).steps():
        begun = tunes.resume_study(folder, None, say, chosen.matrix)
    else:
        sought = tunes.Sought(chosen.budget, None, folder.name, folder.parent)
        begun = (
            tunes.begin_program(Asked(tuple(chosen.program)), sought, say, lambda _: None)
            if chosen.program
            else tunes.begin_design(chosen.design.split(",")[-1], sought, chosen.engine, chosen.matrix, say)
        )
    return not tunes.carry_out(begun, partial(watch_step, quiet=False, tell=say)).interrupted


def independent_matrix(folder: Path, blocks: int) -> Matrix:
    """Return the matrix of a run of the recipe that a search confirmed, and of the named ones, which chose nothing."""
    study, last = StudyFolder(folder).load(), StudyFolder(folder).steps()[-1].load()
    arm, matrix = last.arms[-1], tunes._matrix_of(StudyFolder(folder))
    kept = study.design.model_dump(mode="json", exclude_defaults=True)
    kept = {key: value for key, value in kept.items() if key not in _OF_A_SEARCH}
    limits = {"max_blocks": blocks, "min_blocks": min(blocks, 6), "budget": 1e6, "target": 0.0001, "seed": 1000}
    named = [name for name in tunes.TuneResult(folder)._read[0].space.named if name != arm.runs]
    levels = {arm.runs: last.environments[arm.runs].levels}
    made = with_design(matrix, _INDEPENDENT, {**kept, **limits, "environments": [arm.runs, *named]}, levels)
    return made.model_copy(update={"workloads": {**made.workloads, **matrix.workloads}})


def run_independently(chosen: argparse.Namespace, folder: Path) -> bool:
    """Run what ``independent_matrix`` holds, or go on with it; say whether it was not interrupted."""
    if begun := independent_of(folder):
        experiment = runs.reopen_run(begun.path, matrix=chosen.matrix, say=say)
    else:
        matrix = independent_matrix(folder, chosen.blocks)
        command = ("selfbench", *sys.argv[1:])
        experiment = runs.begin(
            _INDEPENDENT, Overrides(), matrix=matrix, results=folder / _INDEPENDENT, command=command, say=say
        )
    return not runs.carry_out(experiment, runs.telling(say)).interrupted


def verdict_of(folder: Path) -> dict[str, Any] | None:
    """Return what a try claimed and what its independent run says; None: it is not over."""
    if not is_over(folder):
        return None
    result = tunes.TuneResult(folder)
    found = {"recipe": dict(result.answer.tried), "claimed": result.ratio, "interval": result.interval,
             "spent_s": result.answer.spent_s, "budget_s": StudyFolder(folder).load().budget,
             "recommended": bool(result.settings)}  # fmt: skip
    independent = independent_of(folder)
    if not result.settings or not independent:
        return {**found, "good": None}
    run = independent.load()
    measured = fold(run.plan, independent.trials(run.plan))
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
    last = StudyFolder(folder).steps()[-1].load()
    row = row_of(result._read[0].space, last, last.arms[-1])
    own = next(arm for arm in run.arms if arm.reference and row_of(result._read[0].space, run, arm) == row)
    effect = analysis.find(own.name)
    others = [arm for arm in run.arms if arm.reference and not (arm.is_control or arm.is_alone or arm is own)]
    over = {arm.environment: between(analysis, measured, arm, own, run.environments) for arm in others}
    over = {name: one for name, one in over.items() if one.ratio is not None}
    named = min(over, key=lambda name: over[name].ratio or 0.0, default=None)
    return {**found, **judged(result.interval, effect.low, effect.high), "ratio": effect.ratio,
            "low": effect.low, "high": effect.high, "blocks": effect.blocks,
            "beaten_by": [name for name, one in over.items() if one.high is not None and one.high < 1.0],
            "over_best_named": named and {"name": named, "ratio": over[named].ratio, "low": over[named].low,
                                          "high": over[named].high}}  # fmt: skip


def judged(claimed: tuple[float, float] | None, low: float | None, high: float | None) -> dict[str, bool]:
    """Say whether a run shows a gain at all, and whether it is the one that was claimed."""
    faster = low is not None and low > 1.0
    same = bool(claimed and low is not None and high is not None and claimed[0] <= high and low <= claimed[1])
    return {"faster": faster, "as_claimed": same, "good": faster and same}


def summary_of(tries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Judge all tries that are over; one that recommended nothing is not good, whatever there was to find."""
    good = [one for one in tries.values() if one["good"] and not one.get("beaten_by")]
    enough = len(tries) >= TRIES
    verdict = "MET" if len(good) >= math.ceil(len(tries) * GOOD / TRIES) else "MISSED"
    return {
        "tries": len(tries),
        "good": len(good),
        "within_budget": sum(one["spent_s"] <= OVER * one["budget_s"] for one in tries.values()),
        "verdict": verdict if enough else f"not decided: {TRIES} are wanted, the same command goes on",
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be asked beside what ``precision`` and ``verdicts`` take (--to, --design, --engine, --tries)."""
    parser.add_argument("--tune", action="store_true", help="search, and hold the claim against an independent run")
    parser.add_argument("--budget", default="20m", help="with --tune, of a search")
    parser.add_argument("--blocks", type=int, default=40, help="with --tune, of the independent run")
    parser.add_argument("program", nargs="*", help="with --tune, a program of one's own, behind --")


def due(chosen: argparse.Namespace) -> list[Path]:
    """Return the folders of the tries that are to be run now: those that were stopped before any further one."""
    known = sorted(path.parent for path in chosen.to.glob("try-*/study.json"))
    last = max((int(path.name.removeprefix("try-")) for path in known), default=0)
    further = [chosen.to / f"try-{number:02d}" for number in range(last + 1, last + 1 + chosen.tries)]
    return [*(path for path in known if not is_over(path)), *further][: chosen.tries]


def check_same(chosen: argparse.Namespace) -> None:
    """Refuse to mix tries of different things in one folder."""
    what = {"program": chosen.program} if chosen.program else {"design": chosen.design, "engine": chosen.engine}
    asked = {**what, "matrix": chosen.matrix, "budget": chosen.budget, "blocks": chosen.blocks}
    file = chosen.to / "asked.json"
    there = json.loads(file.read_text()) if file.exists() else asked
    if there != asked:
        raise InputError(f"{chosen.to} holds tries of {there}, and not of {asked}", remedy="another folder: --to DIR")
    write_whole(file, json.dumps(asked) + "\n")


def note(chosen: argparse.Namespace, folder: Path, what: str) -> None:
    """Note which code does what for a try from now on."""
    at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    append_line(chosen.to / "tries.jsonl", json.dumps({"try": folder.name, "does": what, "at": at, "commit": commit()}))


def carry_out(chosen: argparse.Namespace) -> int:
    """Run what is due; return 130 when it was interrupted."""
    check_same(chosen)
    for folder in due(chosen):
        if not is_searched(folder):
            note(chosen, folder, "search")
            if not search(chosen, folder):
                return 130
        if not is_over(folder):
            note(chosen, folder, _INDEPENDENT)
            if not run_independently(chosen, folder):
                return 130
    return 0


def measure(chosen: argparse.Namespace) -> int:
    """Make further tries, then judge all in the folder that are over."""
    chosen.to.mkdir(parents=True, exist_ok=True)
    status = 0
    try:
        status = carry_out(chosen) if chosen.tries else 0
    except KeyboardInterrupt:
        status = 130
    except EnvmatrixError as error:
        say(f"{error}\nwhen that is mended, the same command goes on")
        status = error.exit_code
    if status == 130:
        say("interrupted: the same command goes on")
    return judge(chosen.to) or status


def judge(folder: Path) -> int:
    """Write tune.json of all tries in a folder that are over, and print them; return 1 where the measure is missed."""
    folders = sorted(path.parent for path in folder.glob("try-*/study.json"))
    tries = {path.name: one for path in folders if (one := verdict_of(path))}
    if len(tries) < len(folders):
        say(f"not over: {', '.join(path.name for path in folders if path.name not in tries)}")
    if not tries:
        say(f"no try in {folder} is over: give it some --tries")
        return 1
    lines = (folder / "tries.jsonl").read_text().splitlines() if (folder / "tries.jsonl").exists() else []
    commits: dict[str, dict[str, None]] = {}
    for one in map(json.loads, lines):
        commits.setdefault(one["try"], {})[one["commit"]] = None
    whole = {name: {**one, "commits": list(commits.get(name, {}))} for name, one in tries.items()}
    total = summary_of(tries)
    write_whole(folder / "tune.json", json.dumps({"schema": 1, **total, "of": whole}, indent=1) + "\n")
    for name, one in tries.items():
        print(line_of(name, one))
    print(f"{total['within_budget']} of {total['tries']} searches within {OVER:.0%} of their budgets")
    print(f"{total['good']} of {total['tries']} tries good (wanted: {GOOD} of {TRIES}): {total['verdict']}")
    return 1 if total["verdict"] == "MISSED" else 0


def line_of(name: str, one: Mapping[str, Any]) -> str:
    """Write a try in a line."""
    recipe = ", ".join(f"{factor}={level}" for factor, level in one["recipe"].items()) or "the baseline"
    spent = f"{one['spent_s']:.0f} s of {one['budget_s']:.0f} s"
    if one["good"] is None:
        return f"  {name}: nothing was recommended ({recipe}), {spent}"
    claimed, found = _shown(one["claimed"], *one["interval"]), _shown(one["ratio"], one["low"], one["high"])
    best = one["over_best_named"]
    over = f", {_shown(best['ratio'], best['low'], best['high'])} times the best named, {best['name']}" if best else ""
    beaten = f", beaten by {', '.join(one['beaten_by'])}" if one["beaten_by"] else ""
    how = "good" if one["good"] and not beaten else "not good"
    found = f"{found} in {one['blocks']} blocks"
    return f"  {name}: {recipe} claimed {claimed}, found {found}{over}{beaten}: {how}; {spent}"


def _shown(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None or low is None or high is None:
        return "nothing"
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"

"""Hold what `envmatrix tune` claims against an independent run: `nox -s selfbench -- --tune`.

A try is a search of a design, or of a program of one's own (`-- python train.py`), and then a run of its own of the
recipe that it confirmed beside the baseline, its copy and the named recipes. How it is judged: tests/tuned_verdict.py.

Tries lie in their folder (`--to DIR`), those of different designs and programs side by side: `asked.json` says what
each is of, and `tries.jsonl` which commit of the code ran each of them, and when. The same command goes on: first with
tries that were stopped or killed, wherever that was and whatever they are of, then with further ones; nothing that has
ended is lost, and what is not over is not judged. `--tries 0` only judges again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from envmatrix.api import runs, tunes
from envmatrix.api.programs import Asked
from envmatrix.errors import EnvmatrixError, InputError, NothingRanError
from envmatrix.matrix import Matrix
from envmatrix.matrix.extended import with_design
from envmatrix.runner.tuning_progress import watch_step
from envmatrix.store.files import append_line, write_whole
from envmatrix.store.study import StudyFolder
from envmatrix.trials.requested import Overrides
from tests import tuned_verdict
from tests.precision import say
from tests.tuned_verdict import INDEPENDENT, independent_of, is_over, is_searched

#: What of a searched design is none of an independent run's.
_OF_A_SEARCH = ("name", "description", "factors", "cumulative", "application", "reference_values", "race", "steady",
                "claims_first")  # fmt: skip
_ROOT = Path(__file__).parents[1]
_TRY = re.compile(r"try-(\d+)")


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be asked beside what ``precision`` and ``verdicts`` take (--to, --design, --engine, --tries)."""
    parser.add_argument("--tune", action="store_true", help="search, and hold the claim against an independent run")
    parser.add_argument("--budget", default="20m", help="with --tune, of a search")
    parser.add_argument("--blocks", type=int, default=40, help="with --tune, of the independent run")
    parser.add_argument(
        "--named", type=int, help="with --tune, so many named recipes in it, the best by the search (default: all)"
    )
    parser.add_argument("program", nargs="*", help="with --tune, a program of one's own, behind --")


def subject(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return what a command searches."""
    if chosen.program:
        return {"program": list(chosen.program)}
    return {"design": chosen.design.split(",")[-1], "engine": chosen.engine, "matrix": chosen.matrix}


def search(chosen: argparse.Namespace, what: Mapping[str, Any], folder: Path) -> bool:
    """Search, or go on with it; say whether it is over."""
    if StudyFolder(folder).steps():
        begun = tunes.resume_study(folder, None, say, what.get("matrix"))
    else:
        sought = tunes.Sought(chosen.budget, None, folder.name, folder.parent)
        begun = (
            tunes.begin_program(Asked(tuple(what["program"])), sought, say, lambda _: None)
            if "program" in what
            else tunes.begin_design(what["design"], sought, what["engine"], what["matrix"], say)
        )
    return not tunes.carry_out(begun, partial(watch_step, quiet=False, tell=say)).interrupted


def named_of(folder: Path, own: str, most: int | None) -> list[str]:
    """Return the named recipes that worked in a search beside its ``own``, first those that its model expects most of.

    The fresh blocks that confirmed its own recipe say nothing here.
    """
    search, steps = tunes.TuneResult(folder)._read
    batches = [step.batch for step in steps]
    allowed = search.known(batches).allowed
    rows = {name: row for name, row in search.space.named.items() if allowed[row] and name != own}
    if not rows:
        return []
    mean, _ = search.posterior(batches).of_rows(list(rows.values()), search.columns[list(rows.values())])
    gains = dict(zip(rows, mean.tolist(), strict=True))
    return sorted(gains, key=lambda name: -gains[name])[:most]


def independent_matrix(folder: Path, blocks: int, most: int | None) -> Matrix:
    """Return the matrix of a run of the recipe that a search confirmed, and of the named ones, which chose nothing."""
    study, last = StudyFolder(folder).load(), StudyFolder(folder).steps()[-1].load()
    arm, matrix = last.arms[-1], tunes._matrix_of(StudyFolder(folder))
    kept = study.design.model_dump(mode="json", exclude_defaults=True)
    kept = {key: value for key, value in kept.items() if key not in _OF_A_SEARCH}
    limits = {"max_blocks": blocks, "min_blocks": min(blocks, 6), "budget": 1e6, "target": 0.0001, "seed": 1000}
    levels = {arm.runs: last.environments[arm.runs].levels}
    environments = [arm.runs, *named_of(folder, arm.runs, most)]
    made = with_design(matrix, INDEPENDENT, {**kept, **limits, "environments": environments}, levels)
    return made.model_copy(update={"workloads": {**made.workloads, **matrix.workloads}})


def run_independently(chosen: argparse.Namespace, what: Mapping[str, Any], folder: Path) -> bool:
    """Run what ``independent_matrix`` holds, or go on with it; say whether it was not interrupted."""
    if begun := independent_of(folder):
        experiment = runs.reopen_run(begun.path, matrix=what.get("matrix"), say=say)
    else:
        matrix = independent_matrix(folder, chosen.blocks, chosen.named)
        command = ("selfbench", *sys.argv[1:])
        experiment = runs.begin(
            INDEPENDENT, Overrides(), matrix=matrix, results=folder / INDEPENDENT, command=command, say=say
        )
    result = runs.carry_out(experiment, runs.telling(say))
    if not (result.interrupted or is_over(folder)):
        raise NothingRanError(f"the independent run of {folder.name} ended too soon: {result.why}",
                              remedy=f"its logs are in {experiment.folder.logs}")  # fmt: skip
    return not result.interrupted


def asked(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return what the tries of a folder are of; refuse to mix such as are measured in different ways."""
    way = {"budget": chosen.budget, "blocks": chosen.blocks, "named": chosen.named}
    file = chosen.to / "asked.json"
    there = json.loads(file.read_text()) if file.exists() else {**way, "tries": {}}
    if {key: there.get(key) for key in way} != way:
        had = ", ".join(f"{key} {there.get(key)}" for key in way)
        raise InputError(f"{chosen.to} holds tries with {had}, which are judged together",
                         remedy="ask for the same, or name another folder: --to DIR")  # fmt: skip
    return dict(there)


def number_of(folder: Path) -> int:
    """Return the number of a try, 0 for another folder."""
    found = _TRY.fullmatch(folder.name)
    return int(found[1]) if found else 0


def tries_in(folder: Path) -> list[Path]:
    """Return the folders of the tries that were begun, in order."""
    return sorted((path.parent for path in folder.glob("try-*/study.json") if number_of(path.parent)), key=number_of)


def due(chosen: argparse.Namespace) -> list[Path]:
    """Return the folders of the tries that are to be run now: those that were stopped before any further one."""
    known = tries_in(chosen.to)
    last = max(map(number_of, known), default=0)
    further = [chosen.to / f"try-{number:02d}" for number in range(last + 1, last + 1 + chosen.tries)]
    return [*(path for path in known if not is_over(path)), *further][: chosen.tries]


def note(chosen: argparse.Namespace, folder: Path, does: str) -> None:
    """Note which code does what for a try from now on."""
    at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    line = {"try": folder.name, "does": does, "at": at, "commit": commit()}
    append_line(chosen.to / "tries.jsonl", json.dumps(line))


def carry_out(chosen: argparse.Namespace) -> int:
    """Run what is due; return 130 when it was interrupted."""
    known = asked(chosen)
    for folder in due(chosen):
        if not (folder / "study.json").exists():
            known["tries"][folder.name] = subject(chosen)
            write_whole(chosen.to / "asked.json", json.dumps(known, indent=1) + "\n")
        what = known["tries"].get(folder.name) or subject(chosen)
        say(f"{folder.name}, of {tuned_verdict.words_of(what)}")
        if not is_searched(folder):
            note(chosen, folder, "search")
            if not search(chosen, what, folder):
                return 130
        if not is_over(folder):
            note(chosen, folder, INDEPENDENT)
            if not run_independently(chosen, what, folder):
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
        say(f"{error}\nwhen that is mended, the same command goes on (a try that can never end: remove its folder)")
        status = error.exit_code
    if status == 130:
        say("interrupted: the same command goes on")
    return judge(chosen.to) or status


def judge(folder: Path) -> int:
    """Write tune.json of all tries in a folder that are over, and print them; return 1 where the measure is missed."""
    file = folder / "asked.json"
    subjects = json.loads(file.read_text())["tries"] if file.exists() else {}
    folders = tries_in(folder)
    tries = {path.name: one for path in folders if (one := tuned_verdict.verdict_of(path))}
    if len(tries) < len(folders):
        say(f"not over: {', '.join(path.name for path in folders if path.name not in tries)}")
    if not tries:
        say(f"no try in {folder} is over: give it some --tries")
        return 1
    commits = commits_of(folder)
    whole = {
        name: {"of": tuned_verdict.words_of(subjects.get(name, {})), **one, "commits": commits.get(name, [])}
        for name, one in tries.items()
    }
    total = tuned_verdict.summary_of(whole)
    write_whole(folder / "tune.json", json.dumps({"schema": 1, **total, "each": whole}, indent=1) + "\n")
    print("\n".join(tuned_verdict.lines_of(whole, total)))
    return 1 if total["verdict"] == "MISSED" else 0


def commits_of(folder: Path) -> dict[str, list[str]]:
    """Return which commits ran each try; a line that a crash cut short says nothing."""
    file = folder / "tries.jsonl"
    found: dict[str, dict[str, None]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found.setdefault(one["try"], {})[one["commit"]] = None
    return {name: list(commits) for name, commits in found.items()}

"""Count decisions about real processes: `nox -s selfbench -- --alarms`, and `--decides`.

`--alarms`: copies of the baseline, interleaved, ten per block as in the main job, with so little work that many pairs
fit into a minute. They form five pairs without shared processes. For each pair, every `min_blocks` successive blocks
are analysed as a run of two copies, with the code for real runs: how often are two identical things called different?
The pairs of a block share its minutes.

`--decides`: the main job, repeated. An environment differs on a machine if the mean over all tries of that machine
shows it; machines may disagree. A try is good if it decides (faster, slower) each of these. Effects in the steady state
are judged in the same way, where a try has them: `steady` in decides.json.

Repeating the command continues in the folder, also on another machine (validation/measured_parts.py), so that a long
measurement can be split.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy import stats

from envmatrix.api.matrix_and_run_lookup import find_matrix
from envmatrix.matrix import load
from envmatrix.plan import Arm, Plan, make_arms
from envmatrix.results import RunFolder, Trial
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.steady_state.effect import steady_effects
from envmatrix.system.atomic_files import append_line, read_whole_lines, write_whole
from validation import measured_parts as parts
from validation import precision
from validation.precision import COPIES, progress

#: Work that takes no time: the error rate of verdicts is measured, and a pair is the start of two processes.
TINY: Mapping[str, Any] = {"model": "mlp", "widths": "10", "eval_samples": 0}
#: Decisions needed to assess an error rate of 5 %.
ENOUGH, ALLOWED = 200, 0.05
#: Difference that a try must decide (a fraction), number of tries, good ones among them, required half-width.
DIFFERS, TRIES, GOOD, HALF_WIDTH = 0.08, 5, 4, 0.05
#: The same for effects in the steady state: number of tries, good ones among them.
STEADY_TRIES, STEADY_GOOD = 10, 9


def pairs_of(plan: Plan) -> list[tuple[Arm, Arm]]:
    """Split the equal arms of each workload and engine into pairs; an odd one is left out."""
    alike: dict[tuple[str, str], list[Arm]] = {}
    for arm in plan.arms:
        alike.setdefault((arm.workload, arm.engine), []).append(arm)
    return [pair for arms in alike.values() for pair in zip(arms[::2], arms[1::2], strict=False)]


def decisions(plan: Plan, trials: Sequence[Trial]) -> Iterator[Effect]:
    """Yield the effect within each pair for every ``min_blocks`` successive complete blocks."""
    ordered = sorted((trial for trial in trials if trial.outcome == "ok"), key=lambda trial: trial.block)
    baseline = next(arm.environment for arm in plan.arms if arm.reference is None)
    for pair in pairs_of(plan):
        arms = make_arms((baseline,), (pair[0].workload,), (pair[0].engine,), baseline)
        names = {arm.name: as_arm.environment for arm, as_arm in zip(pair, arms, strict=True)}
        own = [replace(trial, environment=names[trial.arm]) for trial in ordered if trial.arm in names]
        blocks = [list(block) for _, block in itertools.groupby(own, key=lambda trial: trial.block)]
        whole, two = [block for block in blocks if len(block) == len(pair)], replace(plan, arms=arms)
        for first in range(0, len(whole) - plan.min_blocks + 1, plan.min_blocks):
            part = itertools.chain.from_iterable(whole[first : first + plan.min_blocks])
            [effect] = estimate(two, fold_trials(two, part), metrics=()).primary_effects()
            yield effect


def alarms_of(effects: Sequence[Effect]) -> dict[str, Any]:
    """Return how many decisions called two copies different, with Clopper and Pearson's 95 % interval."""
    known = [effect for effect in effects if effect.low is not None and effect.high is not None]
    false = sum(not (effect.low or 0.0) <= 1.0 <= (effect.high or math.inf) for effect in known)
    if not known:
        return {
            "decisions": 0,
            "alarms": 0,
            "share": None,
            "low": None,
            "high": None,
            "verdict": "nothing measured yet",
        }
    interval = stats.binomtest(false, len(known)).proportion_ci(0.95)
    share = false / len(known)
    verdict = "MET" if share <= ALLOWED else "MISSED"
    return {
        "decisions": len(known), "alarms": false, "share": share,
        "low": float(interval.low), "high": float(interval.high),
        "verdict": verdict if len(known) >= ENOUGH else f"not decided: {ENOUGH} are wanted, the same command goes on",
    }  # fmt: skip


def alarms(chosen: argparse.Namespace) -> None:
    """Measure interleaved copies for some minutes, in the part to continue here."""
    plan = {"processes": chosen.processes, "engine": chosen.engine, "launcher": chosen.launcher, "turn": chosen.turn,
            "design": chosen.design, "matrix": load(find_matrix(chosen.matrix)).digest}  # fmt: skip
    at = argparse.Namespace(**{**vars(chosen), "to": parts.part_here(chosen.to, plan, chosen.node, progress)})
    way = precision.opened(at, COPIES, "turns", TINY, count=chosen.processes)
    with precision.measuring([way]):
        precision.in_time([way], chosen.minutes, at.to / "blocks.jsonl", even=True)


def judge_alarms(chosen: argparse.Namespace) -> dict[str, Any]:
    """Judge all parts together, print the results, and write them."""
    there, every, each = parts.chosen_parts(chosen), [], {}
    for part in there:
        folder = RunFolder(part.path / f"{COPIES}-turns")
        if parts.is_run(folder.path):
            parts.keep(folder)
            plan = folder.load().plan
            effects = list(decisions(plan, list(parts.trials_of(folder, plan))))
            each[part.path.name] = {key: alarms_of(effects)[key] for key in ("decisions", "alarms")}
            every += effects
    found = alarms_of(every)
    document = {"schema": 2, **found, "parts": parts.as_json(there), "each": each}
    write_whole(chosen.to / "alarms.json", json.dumps(document, indent=1) + "\n")
    print("\n".join(parts.told(there)))
    if len(each) > 1:
        counts = (f"part {name}: {one['alarms']} of {one['decisions']}" for name, one in each.items())
        print(f"called different in {', '.join(counts)}")
    shown = "" if found["share"] is None else f" ({found['share']:.1%} [{found['low']:.1%}, {found['high']:.1%}])"
    print(f"two copies were called different in {found['alarms']} of {found['decisions']} decisions{shown}; "
          f"at most {ALLOWED:.0%} are wanted: {found['verdict']}")  # fmt: skip
    return found


Try = Mapping[str, tuple[float, float, str]]


def tries_of(each: Mapping[str, Sequence[Try]], wanted: int = TRIES, wanted_good: int = GOOD) -> dict[str, Any]:
    """Judge the tries of each part, environment -> (ratio, half-width, verdict), and all of them together."""
    found = {part: tries_of_part(runs) for part, runs in each.items() if runs}
    tries = sum(len(each[part]) for part in found)
    good = sum(not left for one in found.values() for left in one["undecided"])
    verdict = "MET" if good >= math.ceil(tries * wanted_good / wanted) else "MISSED"
    verdict = verdict if tries >= wanted else f"not decided: {wanted} tries are wanted"
    return {"tries": tries, "good": good, "verdict": verdict, "each": found}


def tries_of_part(runs: Sequence[Try]) -> dict[str, Any]:
    """Return the environments that differ on a machine by its tries, and which tries decide all of them."""
    names = sorted({name for run in runs for name in run})
    ratios = {name: statistics.geometric_mean([run[name][0] for run in runs if name in run]) for name in names}
    differing = [name for name in names if abs(math.log(ratios[name])) >= math.log1p(DIFFERS)]
    open_ = [
        [name for name in differing if name not in run or run[name][2] not in ("faster", "slower")] for run in runs
    ]
    widths = [statistics.median(one[1] for one in run.values()) if run else math.inf for run in runs]
    return {"ratios": ratios, "differing": differing, "undecided": open_, "median_half_widths": widths}


def effects_of(folder: RunFolder) -> tuple[Try, Try]:
    """Return environment -> (ratio, half-width, verdict) of a run, for first steps and for the steady state.

    Without an interval the width is infinite; an environment without a steady effect is left out.
    """
    run = folder.load()
    measured = fold_trials(run.plan, parts.trials_of(folder, run.plan))
    analysis = estimate(run.plan, measured, workloads=run.workloads, metrics=())
    effects = [effect for effect in analysis.primary_effects() if effect.ratio and not effect.is_control]
    first = {
        effect.environment: (effect.ratio, math.inf if effect.half_width is None else effect.half_width, effect.verdict)
        for effect in effects
    }
    later = steady_effects(run.plan, measured, analysis)
    steady = {
        effect.environment: (one.ratio, (one.high - one.low) / 2, one.verdict)
        for effect in effects
        if (one := later.get(effect.arm))
    }
    return first, steady


def decides(chosen: argparse.Namespace) -> int:
    """Run the main job several times, interrupted runs first; return its exit code if it failed."""
    name = next((name for name in chosen.design.split(",") if name != COPIES), "default")
    matrix = ("--matrix", chosen.matrix) if chosen.matrix else ()
    plan = {"design": name, "engine": chosen.engine, "launcher": chosen.launcher,
            "matrix": load(find_matrix(chosen.matrix)).digest}  # fmt: skip
    part = parts.part_here(chosen.to, plan, chosen.node, progress)
    begin = ["bench", name, "--engine", chosen.engine, "--launcher", chosen.launcher,
             *(("--nodelist", chosen.node) if chosen.node else ())]  # fmt: skip
    stopped = [["resume", run.name] for run in tries_in(part) if run.name not in over(part)]
    for words in (stopped + [begin] * chosen.tries)[: chosen.tries]:
        argv = [sys.executable, "-m", "envmatrix", *words, "--results", str(part), *matrix]
        done = subprocess.run(argv, check=False).returncode
        if done not in (0, 3, 7):  # 3, 7: some trials failed or did other work; the others are valid
            return done
        ended = tries_in(part)[-1].name if words is begin else words[1]
        append_line(part / "tries.jsonl", json.dumps({"run": ended}))
    return 0


def tries_in(part: Path) -> list[Path]:
    """Return the runs of a part in the order they were begun."""
    return sorted(file.parent for file in part.glob("*/run.json"))


def over(part: Path) -> set[str]:
    """Return the finished runs of a part."""
    return {json.loads(line)["run"] for _, line in read_whole_lines(part / "tries.jsonl")}


def judge_decides(chosen: argparse.Namespace) -> dict[str, Any]:
    """Judge all finished tries of all parts, print the results, and write them."""
    there, runs = parts.chosen_parts(chosen), dict[str, dict[str, tuple[Try, Try]]]()
    for part in there:
        ended: dict[str, tuple[Try, Try]] = {}
        runs[part.path.name] = ended
        for path in tries_in(part.path):
            if path.name in over(part.path):
                parts.keep(RunFolder(path))
                ended[path.name] = effects_of(RunFolder(path))
            else:
                progress(f"{path} is not over")
    print("\n".join(parts.told(there)))
    found = tries_of({part: [first for first, _ in ended.values()] for part, ended in runs.items()})
    with_steady = {part: {run: two[1] for run, two in ended.items() if two[1]} for part, ended in runs.items()}
    steady = tries_of({part: list(ended.values()) for part, ended in with_steady.items()}, STEADY_TRIES, STEADY_GOOD)
    for part, one in found["each"].items():
        one["runs"] = list(runs[part])
        print("\n".join(lines_of(part, one)))
    for part, one in steady["each"].items():
        one["runs"] = list(with_steady[part])
        print("\n".join(lines_of(f"{part}, steady state", one)))
    document = {"schema": 3, **found, "steady": steady, "parts": parts.as_json(there)}
    write_whole(chosen.to / "decides.json", json.dumps(document, indent=1) + "\n")
    for name, one, wanted in (("", found, (GOOD, TRIES)), ("steady state: ", steady, (STEADY_GOOD, STEADY_TRIES))):
        print(
            f"{name}{one['good']} of {one['tries']} tries decided all of them (wanted: {wanted[0]} of {wanted[1]}): "
            f"{one['verdict']}"
        )
    return found


def lines_of(part: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results of a part's tries."""
    ratios = ", ".join(f"{name} {found['ratios'][name]:.2f}x" for name in found["differing"]) or "none"
    yield f"part {part}: environments that differ by {DIFFERS:.0%} or more: {ratios}"
    for run, left, width in zip(found["runs"], found["undecided"], found["median_half_widths"], strict=True):
        said = f"median half-width {width:.1%} (wanted: {HALF_WIDTH:.0%})"
        yield f"  {run}: {said}, undecided: {', '.join(left) or 'none'}"


def pairs(text: str) -> int:
    """Return the number of processes per block, which must be even."""
    if not text.isdecimal() or int(text) < 2 or int(text) % 2:
        raise argparse.ArgumentTypeError(f"{text!r}: pairs of processes are wanted, such as 2 or 10")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``precision`` lacks (it has --minutes, --to, --design, --engine, --launcher, ...)."""
    parser.add_argument("--alarms", action="store_true", help="how often two copies in turns are called different")
    parser.add_argument("--processes", type=pairs, default=10, help="with --alarms, of a block: pairs of copies")
    parser.add_argument("--decides", action="store_true", help="run the main job, and say which tries decide enough")
    parser.add_argument("--tries", type=int, default=1, help="with --decides runs now, with --tune searches")


def measure(chosen: argparse.Namespace) -> int:
    """Measure what was requested, then judge all parts; return 1 if the criterion is missed."""
    found: dict[str, Any] = {}
    broke: list[int] = []

    def run() -> None:
        if chosen.alarms and chosen.minutes > 0:
            alarms(chosen)
        elif chosen.decides and chosen.tries and chosen.minutes > 0:
            broke.append(decides(chosen))

    status = precision.attempted(run) or sum(broke)
    judge = judge_alarms if chosen.alarms else judge_decides
    status = precision.attempted(lambda: found.update(judge(chosen))) or status
    return 1 if found.get("verdict") == "MISSED" else status

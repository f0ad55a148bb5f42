"""Count what the tool decides of real processes: `nox -s selfbench -- --alarms`, and `--decides`.

`--alarms`: two copies of the baseline in turns, with next to no work, so that many pairs fit into a minute. Each
`min_blocks` blocks that follow one another are judged as a run of their own, by the code that judges runs: how often
are two identical things called different?

`--decides`: the main job itself, again and again. An environment differs where the mean over all tries says so; a try
is good when it decides (faster, slower) every one of them.

Both go on in their folder when the command is given again, so that long measuring is several short ones.
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
from typing import Any

from scipy import stats

from envmatrix.errors import EnvmatrixError
from envmatrix.plan import Plan
from envmatrix.stats.analysis import estimate
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import fold
from envmatrix.store import RunFolder, Trial
from envmatrix.store.files import write_whole
from tests import precision
from tests.precision import COPIES, say

#: Work that takes no time: what is counted is how often a verdict errs, and a pair is the start of two processes.
TINY: Mapping[str, Any] = {"model": "mlp", "widths": "10", "eval_samples": 0}
#: So many decisions say something of an error of 5 %.
ENOUGH, ALLOWED = 200, 0.05
#: The difference that a try must decide (a fraction), in so many tries of so many; the half-width that is wanted.
DIFFERS, TRIES, GOOD, HALF_WIDTH = 0.08, 5, 4, 0.05


def decisions(plan: Plan, trials: Sequence[Trial]) -> Iterator[Effect]:
    """Yield the effect of the control in each ``min_blocks`` whole blocks that follow one another."""
    ordered = sorted(trials, key=lambda trial: trial.block)
    blocks = [list(block) for _, block in itertools.groupby(ordered, key=lambda trial: trial.block)]
    whole = [block for block in blocks if len(block) == len(plan.arms) and all(one.outcome == "ok" for one in block)]
    for first in range(0, len(whole) - plan.min_blocks + 1, plan.min_blocks):
        part = itertools.chain.from_iterable(whole[first : first + plan.min_blocks])
        [effect] = estimate(plan, fold(plan, part), metrics=()).primary_effects()
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


def alarms(chosen: argparse.Namespace) -> int:
    """Measure copies in turns for some minutes, then judge all that is in the folder."""
    folder = RunFolder(chosen.to / f"{COPIES}-turns")
    try:
        if chosen.minutes > 0:
            way = precision.opened(chosen, COPIES, "turns", TINY)
            with precision.measuring([way]):
                precision.in_time([way], chosen.minutes, chosen.to / "blocks.jsonl", even=True)
    except KeyboardInterrupt:
        say("interrupted: the same command goes on")
    except EnvmatrixError as error:
        say(f"{error}: when that is mended, the same command goes on")
    if not folder.path.exists():
        say(f"no run in {folder.path}: give it some --minutes")
        return 1
    plan = folder.load().plan
    found = alarms_of(list(decisions(plan, list(folder.trials(plan)))))
    write_whole(chosen.to / "alarms.json", json.dumps({"schema": 1, **found}, indent=1) + "\n")
    shown = "" if found["share"] is None else f" ({found['share']:.1%} [{found['low']:.1%}, {found['high']:.1%}])"
    print(f"two copies were called different in {found['alarms']} of {found['decisions']} decisions{shown}, "
          f"each of {plan.min_blocks} blocks; at most {ALLOWED:.0%} are wanted: {found['verdict']}")  # fmt: skip
    return 1 if found["verdict"] == "MISSED" else 0


def tries_of(runs: Sequence[Mapping[str, tuple[float, float, str]]]) -> dict[str, Any]:
    """Judge tries, each environment -> (ratio, half-width, verdict): what differs, and which tries decide all of it."""
    names = sorted({name for run in runs for name in run})
    ratios = {name: statistics.geometric_mean([run[name][0] for run in runs if name in run]) for name in names}
    differing = [name for name in names if abs(math.log(ratios[name])) >= math.log1p(DIFFERS)]
    open_ = [
        [name for name in differing if name not in run or run[name][2] not in ("faster", "slower")] for run in runs
    ]
    widths = [statistics.median(one[1] for one in run.values()) if run else math.inf for run in runs]
    good = sum(not left for left in open_)
    verdict = "MET" if good >= math.ceil(len(runs) * GOOD / TRIES) else "MISSED"
    return {
        "tries": len(runs), "ratios": ratios, "differing": differing, "undecided": open_, "median_half_widths": widths,
        "good": good, "verdict": verdict if len(runs) >= TRIES else f"not decided: {TRIES} tries are wanted",
    }  # fmt: skip


def effects_of(folder: RunFolder) -> dict[str, tuple[float, float, str]]:
    """Return environment -> (ratio, half-width, verdict) of a run; one without an interval is as wide as can be."""
    run = folder.load()
    found = estimate(run.plan, fold(run.plan, folder.trials(run.plan)), workloads=run.workloads, metrics=())
    return {
        effect.environment: (effect.ratio, math.inf if effect.half_width is None else effect.half_width, effect.verdict)
        for effect in found.primary_effects()
        if effect.ratio and not effect.is_control
    }


def decides(chosen: argparse.Namespace) -> int:
    """Run the main job so often, then judge all tries that are in the folder."""
    name = next((name for name in chosen.design.split(",") if name != COPIES), "default")
    for _ in range(chosen.tries):
        argv = [
            sys.executable,
            "-m",
            "envmatrix",
            "bench",
            name,
            "--engine",
            chosen.engine,
            "--results",
            str(chosen.to),
            "--launcher",
            chosen.launcher,
            *(("--nodelist", chosen.node) if chosen.node else ()),
        ]
        done = subprocess.run([*argv, *(("--matrix", chosen.matrix) if chosen.matrix else ())], check=False)
        if done.returncode not in (0, 3):  # 3: some trials broke, and the others say what they say
            return done.returncode
    folders = sorted(path.parent for path in chosen.to.glob("*/trials.jsonl"))
    runs = {path.name: effects_of(RunFolder(path)) for path in folders}
    if not runs:
        say(f"no run in {chosen.to}: give it some --tries")
        return 1
    found = tries_of(list(runs.values()))
    write_whole(chosen.to / "decides.json", json.dumps({"schema": 1, "runs": list(runs), **found}, indent=1) + "\n")
    ratios = ", ".join(f"{name} {found['ratios'][name]:.2f}x" for name in found["differing"]) or "none"
    print(f"environments that differ by {DIFFERS:.0%} or more: {ratios}")
    for run, left, width in zip(runs, found["undecided"], found["median_half_widths"], strict=True):
        print(
            f"  {run}: median half-width {width:.1%} (wanted: {HALF_WIDTH:.0%}), undecided: {', '.join(left) or 'none'}"
        )
    print(
        f"{found['good']} of {found['tries']} tries decided all of them (wanted: {GOOD} of {TRIES}): {found['verdict']}"
    )
    return 1 if found["verdict"] == "MISSED" else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be asked beside what ``precision`` takes (--minutes, --to, --design, --engine, --launcher, ...)."""
    parser.add_argument("--alarms", action="store_true", help="how often two copies in turns are called different")
    parser.add_argument("--decides", action="store_true", help="run the main job, and say which tries decide enough")
    parser.add_argument("--tries", type=int, default=1, help="with --decides, runs now; 0: only the figures again")


def measure(chosen: argparse.Namespace) -> int:
    """Do what was asked."""
    chosen.to.mkdir(parents=True, exist_ok=True)
    return alarms(chosen) if chosen.alarms else decides(chosen)

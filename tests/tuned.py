"""Hold what `envmatrix tune` claims against an independent run: `nox -s selfbench -- --tune`.

A try is a search of a design, or of a program of one's own (`-- python train.py`), and then a run of its own of the
recipe that it confirmed and of the named recipes it knew. A try is good when that run shows the recipe to be faster
than the baseline by what was claimed (both intervals overlap), and no named recipe to be faster than it. Tries lie in
their folder: the same command makes further ones.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envmatrix.api.tunes import TuneResult, _matrix_of
from envmatrix.matrix.extended import with_design
from envmatrix.stats.analysis import between, estimate
from envmatrix.stats.measurements import fold
from envmatrix.stats.tuning_steps import row_of
from envmatrix.store import RunFolder
from envmatrix.store.files import write_whole
from envmatrix.store.study import StudyFolder
from tests.precision import say

#: Tries that are wanted, and how many of them must be good.
TRIES, GOOD = 10, 9
_INDEPENDENT = "independent"


def said(argv: Sequence[str]) -> int:
    """Run envmatrix, and show what it says."""
    return subprocess.run([sys.executable, "-m", "envmatrix", *argv], check=False).returncode


def search(chosen: argparse.Namespace, number: int) -> Path:
    """Search once; return the folder of the search."""
    name = f"try-{number:02d}"
    what = ["--", *chosen.program] if chosen.program else [chosen.design.split(",")[-1], "--engine", chosen.engine]
    from_matrix = ["--matrix", chosen.matrix] if chosen.matrix and not chosen.program else []
    words = ["--budget", chosen.budget, "--name", name, "--results", str(chosen.to), *from_matrix]
    status = said(["tune", *words, *what])
    if status:
        raise SystemExit(status)
    return Path(chosen.to) / name


def run_independently(folder: Path, blocks: int) -> int:
    """Run the recipe that a search confirmed beside the named ones, in a run that chose nothing."""
    study, last = StudyFolder(folder).load(), StudyFolder(folder).steps()[-1].load()
    arm, matrix = last.arms[-1], _matrix_of(StudyFolder(folder))
    design = study.design.model_dump(mode="json", exclude_defaults=True)
    kept = {key: value for key, value in design.items() if key in ("workloads", "baseline", "schedule", "engines")}
    limits = {"max_blocks": blocks, "min_blocks": min(blocks, 6), "budget": "6h", "target": 0.0001, "seed": 1000}
    named = [name for name in TuneResult(folder)._read[0].space.named if name != arm.runs]
    levels = last.environments[arm.runs].levels
    made = with_design(matrix, _INDEPENDENT, {**kept, **limits, "environments": [arm.runs, *named]}, {arm.runs: levels})
    file = folder / "independent.yaml"
    write_whole(file, made.text)
    return said(["bench", _INDEPENDENT, "--matrix", str(file), "--results", str(folder / _INDEPENDENT)])


def verdict_of(folder: Path) -> dict[str, Any] | None:
    """Return what a try claimed and what its independent run says; None: it has none yet."""
    result = TuneResult(folder)
    found = {"recipe": dict(result.answer.tried), "claimed": result.ratio, "interval": result.interval,
             "spent_s": result.answer.spent_s, "budget_s": StudyFolder(folder).load().budget,
             "recommended": bool(result.settings)}  # fmt: skip
    runs = sorted((folder / _INDEPENDENT).glob("*/run.json"))
    if not runs:
        return None if result.settings else {**found, "good": None}
    independent = RunFolder(runs[-1].parent)
    run = independent.load()
    measured = fold(run.plan, independent.trials(run.plan))
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
    last = StudyFolder(folder).steps()[-1].load()
    row = row_of(result._read[0].space, last, last.arms[-1])
    own = next(arm for arm in run.arms if arm.reference and row_of(result._read[0].space, run, arm) == row)
    effect = analysis.find(own.name)
    others = [arm for arm in run.arms if arm.reference and not (arm.is_control or arm.is_alone or arm is own)]
    over = {arm.environment: between(analysis, measured, arm, own, run.environments) for arm in others}
    better = [name for name, one in over.items() if one.high is not None and one.high < 1.0]
    return {**found, **judged(result.interval, effect.low, effect.high), "ratio": effect.ratio,
            "low": effect.low, "high": effect.high, "blocks": effect.blocks, "beaten_by": better}  # fmt: skip


def judged(claimed: tuple[float, float] | None, low: float | None, high: float | None) -> dict[str, bool]:
    """Say whether a run shows a gain at all, and whether it is the one that was claimed."""
    faster = low is not None and low > 1.0
    same = bool(claimed and low is not None and high is not None and claimed[0] <= high and low <= claimed[1])
    return {"faster": faster, "as_claimed": same, "good": faster and same}


def summary_of(tries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Judge all tries; one that recommended nothing is not good, whatever there was to find."""
    good = [one for one in tries.values() if one["good"] and not one.get("beaten_by")]
    enough = len(tries) >= TRIES
    verdict = "MET" if len(good) >= math.ceil(len(tries) * GOOD / TRIES) else "MISSED"
    return {
        "tries": len(tries),
        "good": len(good),
        "verdict": verdict if enough else f"not decided: {TRIES} are wanted",
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be asked beside what ``precision`` and ``verdicts`` take (--to, --design, --engine, --tries)."""
    parser.add_argument("--tune", action="store_true", help="search, and hold the claim against an independent run")
    parser.add_argument("--budget", default="20m", help="with --tune, of a search")
    parser.add_argument("--blocks", type=int, default=40, help="with --tune, of the independent run")
    parser.add_argument("program", nargs="*", help="with --tune, a program of one's own, behind --")


def measure(chosen: argparse.Namespace) -> int:
    """Make further tries, then judge all that are in the folder."""
    chosen.to.mkdir(parents=True, exist_ok=True)
    there = len(list(chosen.to.glob("try-*/study.json")))
    for number in range(there + 1, there + 1 + chosen.tries):
        folder = search(chosen, number)
        if TuneResult(folder).settings and (status := run_independently(folder, chosen.blocks)) not in (0, 3):
            return status
    found = {path.parent.name: verdict_of(path.parent) for path in sorted(chosen.to.glob("try-*/study.json"))}
    tries = {name: one for name, one in found.items() if one is not None}
    if not tries:
        say(f"no try in {chosen.to}: give it some --tries")
        return 1
    total = summary_of(tries)
    write_whole(chosen.to / "tune.json", json.dumps({"schema": 1, **total, "of": tries}, indent=1) + "\n")
    for name, one in tries.items():
        print(line_of(name, one))
    print(f"{total['good']} of {total['tries']} tries good (wanted: {GOOD} of {TRIES}): {total['verdict']}")
    return 1 if total["verdict"] == "MISSED" else 0


def line_of(name: str, one: Mapping[str, Any]) -> str:
    """Write a try in a line."""
    recipe = ", ".join(f"{factor}={level}" for factor, level in one["recipe"].items()) or "the baseline"
    spent = f"{one['spent_s']:.0f} s of {one['budget_s']:.0f} s"
    if one["good"] is None:
        return f"  {name}: nothing was recommended ({recipe}), {spent}"
    low, high = one["interval"]
    beaten = f", beaten by {', '.join(one['beaten_by'])}" if one["beaten_by"] else ""
    return (
        f"  {name}: {recipe} claimed {one['claimed']:.3f} ({low:.3f} to {high:.3f}), found {one['ratio']:.3f} "
        f"({one['low']:.3f} to {one['high']:.3f}, {one['blocks']} blocks){beaten}; {spent}"
    )

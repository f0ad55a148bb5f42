"""Compare short turns with long stretches of the same processes: `nox -s selfbench -- --agreement --paired`.

Each process first takes the turns of its design. Then it takes `--long` seconds of steps in stretches of `--stretch`
seconds, with turns between two stretches, twice as many as the design's. Turns and stretches come from the same process
and the same minutes. Properties of the process (memory layout, chance) and of the machine are therefore in both and
cancel in their ratio. So a block is far more informative than blocks of different processes (validation/agreement.py).
The first turns, all that a trial of the design has, are also compared with the stretches: this shows whether its first
steps are like those of a long trial.

The windows of each trial are kept in `windows.json`, small enough to commit; `--minutes 0` only recomputes the results.
This only works on this machine: a batch script's turns have equal lengths.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from envmatrix.errors import InputError
from envmatrix.evidence.trial_record import Timing
from envmatrix.plan import Plan
from envmatrix.results import RunFolder, Trial
from envmatrix.stats.measurements import read_measurements
from envmatrix.system.atomic_files import write_whole
from envmatrix.trials.interleave import TurnLengths
from validation import precision_figures as figures
from validation.measured_parts import Part
from validation.precision import Way, in_time, measuring, opened, paired_by_block, progress, shown

#: Seconds of steps excluded at the start of a stretch: the process's caches are cold, and its core was idle.
APART_S = 1.0
#: Turns between two stretches, in multiples of the design's turns: they determine a block's noise.
AGAIN = 2
#: Windows of a trial: steps in the turns of the design, in turns between stretches, and in stretches.
WINDOWS = ("first", "turns", "long")
KEPT = "windows.json"

Windows = Mapping[str, Sequence[Any]]


def run_design(chosen: argparse.Namespace, name: str, minutes: float) -> None:
    """Run blocks of one design until its share of the time is used."""
    if chosen.launcher != "here":
        raise InputError("--paired: a batch script's turns are all alike", remedy="leave --launcher out, or --paired")
    notes, began, short = chosen.to / "blocks.jsonl", time.monotonic(), opened(chosen, name, "turns")
    with measuring([short]):
        if not short.block:
            short.run_block(notes)
    in_turns, stretch = steps_in_turns(short), long_steps(short, chosen.stretch)
    limit = max(short.experiment.run.design.trial_limit, 10 * chosen.long)
    steps = _short_steps(in_turns, chosen) + _stretches(chosen) * stretch
    way = opened(chosen, name, "paired", {"steps": steps}, own={"schedule": "turns", "trial_limit": limit})
    way.lengths = lengths_of(way, in_turns, chosen)
    with measuring([way]):
        in_time([way], minutes - (time.monotonic() - began) / 60, notes, even=True)


def steps_in_turns(way: Way) -> int:
    """Return the number of steps of a trial that runs as in the design."""
    run = way.experiment.run
    return int(run.workloads[run.arms[0].workload].options["steps"])


def long_steps(way: Way, seconds: float) -> int:
    """Return the number of steps that take this many seconds, from the reference's trials."""
    measured = read_measurements(way.experiment.folder, way.experiment.plan)
    known = [measured.median(arm.name, "step_median_s") for arm in way.experiment.plan.arms if not arm.reference]
    steps = [seconds / step for step in known if step]
    if not steps:
        raise SystemExit("no trial of the reference ran well: its log says why")
    return math.ceil(max(steps))


def _stretches(chosen: argparse.Namespace) -> int:
    return math.ceil(chosen.long / chosen.stretch)


def _short_steps(in_turns: int, chosen: argparse.Namespace) -> int:
    """Return the number of steps that a process takes in turns, before and between its stretches."""
    return in_turns * (1 + AGAIN * (_stretches(chosen) - 1))


def lengths_of(way: Way, in_turns: int, chosen: argparse.Namespace) -> TurnLengths:
    """Return the turn lengths (the design's, and stretches) of a run, which may have been begun earlier."""
    design, stretches = way.experiment.run.design, _stretches(chosen)
    stretch = (steps_in_turns(way) - _short_steps(in_turns, chosen)) // stretches
    long = (math.ceil(stretch * APART_S / chosen.stretch), stretch)
    progress(f"{in_turns} steps in turns of {design.turn}, and then {stretches} stretches of {stretch} steps; "
        f"between two of them {AGAIN * in_turns} steps in turns")  # fmt: skip
    short = [(design.turn_apart, min(design.turn, in_turns - first)) for first in range(0, in_turns, design.turn)]
    taken = [*short, long, *(stretches - 1) * [*(AGAIN * short), long]]
    return taken.__getitem__


def windows_of(trials: Iterable[Trial], turn: int) -> dict[str, list[Any]]:
    """Return the mean seconds per step in each window of each successful trial; ``turn`` is the design's."""
    found: dict[str, list[Any]] = {"block": [], "arm": [], **{window: [] for window in WINDOWS}}
    for trial in trials:
        timing = trial.record.timing if trial.outcome == "ok" and trial.record else None
        taken = _taken(timing, turn) if timing else {}
        if taken and all(taken.values()):
            found["block"].append(trial.block)
            found["arm"].append(trial.arm)
            for window, steps in taken.items():
                found[window].append(round(sum(steps) / len(steps) / 1e9, 9))
    return found


def _taken(timing: Timing, turn: int) -> dict[str, list[int]]:
    """Return the steps (ns) of each window of a trial."""
    steps = iter(timing.steps_ns or ())
    found: dict[str, list[int]] = {window: [] for window in WINDOWS}
    for one in timing.turns or ():
        count = one.steps or 0
        window = "long" if count > turn else "turns" if found["long"] else "first"
        found[window] += itertools.islice(steps, count)
    return found


def keep(folder: RunFolder, turn: int) -> Windows:
    """Return the windows of a run's trials, and store them in a small file that replaces trials.jsonl."""
    file = folder.path / KEPT
    if folder.trials_file.exists():
        windows = windows_of(folder.trials(folder.load().plan), turn)
        write_whole(file, json.dumps(windows) + "\n")
    return dict(json.loads(file.read_text())) if file.exists() else {}


def sides_of(part: Part, name: str) -> list[figures.Measured] | None:
    """Return a part's results for a design in each window, or None if it has no block of it."""
    folder = RunFolder(part.path / f"{name}-paired")
    if not folder.run_file.exists():
        return None
    run = folder.load()
    windows = keep(folder, run.design.turn)
    return [measured_of(run.plan, windows, window) for window in WINDOWS] if windows.get("block") else None


def measured_of(plan: Plan, windows: Windows, window: str) -> figures.Measured:
    """Return the log ratios of a window: arms x blocks, NaN if an arm or all its references failed."""
    blocks = sorted(set(windows["block"]))
    rates = {arm.name: np.full(len(blocks), np.nan) for arm in plan.arms}
    for block, arm, seconds in zip(windows["block"], windows["arm"], windows[window], strict=True):
        rates[arm][blocks.index(block)] = 1 / seconds
    return paired_by_block(plan, rates.__getitem__, np.zeros(len(blocks)))


def compared(there: Sequence[Part], name: str) -> dict[str, Any] | None:
    """Return the results of all windows for a design over all parts, or None if no part has it."""
    found = {part.path.name: sides for part in there if (sides := sides_of(part, name))}
    if not found:
        return None
    sides = {window: [measured[side] for measured in found.values()] for side, window in enumerate(WINDOWS)}
    over_long = {
        window: [figures.Measured(one.arms, one.ratios - long.ratios, one.seconds)
                 for one, long in zip(sides[window], sides["long"], strict=True)]
        for window in WINDOWS[:-1]
    }  # fmt: skip
    arms = dict.fromkeys(arm for measured in sides["long"] for arm in measured.arms)
    rows = [_row(arm, sides, over_long, len(arms)) for arm in arms]
    blocks = {part: measured[0].seconds.size for part, measured in found.items()}
    return {"design": name, "blocks": blocks, "arms": rows}


def _row(
    arm: str, sides: Mapping[str, Sequence[figures.Measured]], over_long: Mapping[str, Sequence[figures.Measured]],
    together: int,
) -> dict[str, Any]:  # fmt: skip
    turns = over_long["turns"]
    own = figures.effect(turns, arm)
    return {
        "arm": arm,
        "sd": {window: figures.deviation(measured, arm) for window, measured in over_long.items()},
        "effect": {window: figures.as_json(figures.effect(side, arm)) for window, side in sides.items()},
        "turns_over_long": figures.as_json(own),
        "first_over_long": figures.as_json(figures.effect(over_long["first"], arm)),
        "agreement": figures.agreement(own, figures.effect(turns, arm, together)),
        "blocks_for_2_percent": figures.blocks_for(turns, arm, 0.02),
    }


def lines_of(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of a comparison."""
    blocks = "; ".join(f"part {part}: {count}" for part, count in found["blocks"].items())
    yield f"\n{found['design']}: turns against long stretches of the same processes; 95 % intervals, each for itself"
    yield f"  blocks: {blocks}"
    columns = ("effect long", "in turns, over that", "first turns, over that")
    yield f"  {'arm':34} {'sd':>7}  {columns[0]:20} {columns[1]:20} {'':32} {columns[2]}"
    for row in found["arms"]:
        sd = "-" if row["sd"]["turns"] is None else f"{row['sd']['turns']:.4f}"
        long, turns, first = (
            shown(one, ".3f") for one in (row["effect"]["long"], row["turns_over_long"], row["first_over_long"])
        )
        yield f"  {row['arm']:34} {sd:>7}  {long:20} {turns:20} {row['agreement']:32} {first}"

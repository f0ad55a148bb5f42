"""Compare effects of interleaved and of long trials, on several machines: `nox -s selfbench -- --agreement`.

Interleaved blocks and blocks of long trials alternate within one session, in random order. With `--stretch SECONDS` the
long trials of a block are alive together and take turns of that length. They then share what a machine does in minutes,
so far fewer blocks give the same precision. With `--paired` both are windows of one process (validation/paired.py),
which needs even fewer blocks. Each machine's blocks are a separate part (validation/measured_parts.py). The ratio of
both effects is estimated within each part and assumed to be the same in all. `--minutes 0` only recomputes the results.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envmatrix.api.matrix_and_run_lookup import find_matrix
from envmatrix.errors import InputError
from envmatrix.matrix import load
from envmatrix.results import RunFolder
from envmatrix.system.atomic_files import write_whole
from validation import measured_parts as parts
from validation import paired
from validation import precision_figures as figures
from validation.measured_parts import Part
from validation.paired import APART_S, long_steps
from validation.precision import (
    COPIES,
    Way,
    attempted,
    in_time,
    measured_of,
    measuring,
    opened,
    progress,
    read_notes,
    shown,
)

WAYS = ("turns", "long")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``precision`` does not have."""
    parser.add_argument("--agreement", action="store_true", help="effects in turns against those of long trials")
    parser.add_argument("--long", type=float, default=60.0, help="seconds of steps of a long trial")
    parser.add_argument(
        "--stretch", type=float, default=0.0, help="seconds that it goes on before others do (0: to its end)"
    )
    parser.add_argument("--paired", action="store_true", help="in turns and long: one process, first this, then that")


def designs_of(chosen: argparse.Namespace) -> list[str]:
    """Return the designs whose arms are compared."""
    return [name for name in chosen.design.split(",") if name != COPIES]


def plan_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that must be equal to continue a part."""
    return {
        "designs": designs_of(chosen), "environments": chosen.environments, "long": chosen.long, "turn": chosen.turn,
        "engine": chosen.engine, "launcher": chosen.launcher, "matrix": load(find_matrix(chosen.matrix)).digest,
        "stretch": chosen.stretch or None, **({"paired": True} if chosen.paired else {}),
    }  # fmt: skip


def run(chosen: argparse.Namespace) -> None:
    """Measure in the part that continues here, one design after the other."""
    whole, own = chosen.to, {"stretch": chosen.stretch or None, "paired": chosen.paired or None}
    if any(part.plan.get(key) != value for part in parts.parts_in(whole) for key, value in own.items()):
        raise InputError(f"{whole} holds other long trials (--stretch, --paired); all in a folder are judged together",
                         remedy="ask for the same, or name another folder: --to DIR")  # fmt: skip
    if chosen.paired and not chosen.stretch:
        raise InputError("--paired wants --stretch", remedy="such as --stretch 10: seconds in one go before others do")
    if chosen.paired and chosen.long <= chosen.stretch:
        raise InputError("--paired wants two stretches at least, with turns between them", remedy="a longer --long")
    chosen.to = parts.part_here(whole, plan_of(chosen), chosen.node, progress)
    try:
        for name in designs_of(chosen):
            minutes = chosen.minutes / len(designs_of(chosen))
            (paired.run_design if chosen.paired else run_design)(chosen, name, minutes)
    finally:
        chosen.to = whole


def run_design(chosen: argparse.Namespace, name: str, minutes: float) -> None:
    """Run blocks of one design in both ways until its share of the time is used."""
    notes, began, turns = chosen.to / "blocks.jsonl", time.monotonic(), opened(chosen, name, "turns")
    with measuring([turns]):
        if not turns.block:
            turns.run_block(notes)
    options, own = as_long(turns, chosen.long, chosen.stretch)
    long = opened(chosen, name, "long", options, own=own)
    run = long.experiment.run  # it may have been begun by an earlier start
    steps = run.workloads[run.arms[0].workload].options["steps"]
    progress(f"{name}: long trials have {steps} steps" + (f", {run.design.turn} at a time" if chosen.stretch else ""))
    turns.experiment.folder.lock()
    with measuring([turns, long]):
        in_time([turns, long], minutes - (time.monotonic() - began) / 60, notes, even=False)


def as_long(turns: Way, seconds: float, stretch: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the workload options and design fields of long trials, from the interleaved step times."""
    limit = {"trial_limit": max(turns.experiment.run.design.trial_limit, 10 * seconds)}
    if not stretch:
        return {"steps": long_steps(turns, seconds)}, limit
    length, apart = long_steps(turns, stretch), long_steps(turns, APART_S)
    return {"steps": math.ceil(seconds / stretch) * length}, {
        **limit, "schedule": "turns", "turn": length, "turn_apart": apart
    }  # fmt: skip


def sides_of(part: Part, name: str) -> list[figures.Measured] | None:
    """Return a part's results for a design in both ways, or None if either has no block."""
    folders = [RunFolder(part.path / f"{name}-{way}") for way in WAYS]
    if not all(parts.is_run(folder.path) for folder in folders):
        return None
    for folder in folders:
        parts.keep(folder)
    notes = read_notes(part.path / "blocks.jsonl")
    sides = [measured_of(folder, notes)[0] for folder in folders]
    return sides if all(side.seconds.size for side in sides) else None


def compared(there: Sequence[Part], name: str) -> dict[str, Any] | None:
    """Return the results for a design over all parts, or None if no part has it."""
    found = {part.path.name: sides for part in there if (sides := sides_of(part, name))}
    if not found:
        return None
    turns, long = ([sides[way] for sides in found.values()] for way in (0, 1))
    arms = dict.fromkeys(arm for side in turns for arm in side.arms)
    blocks = {part: {way: side.seconds.size for way, side in zip(WAYS, sides, strict=True)}
              for part, sides in found.items()}  # fmt: skip
    return {"design": name, "blocks": blocks, "arms": [_row(arm, turns, long) for arm in arms]}


def _row(arm: str, turns: Sequence[figures.Measured], long: Sequence[figures.Measured]) -> dict[str, Any]:
    apart, sides = figures.difference(turns, long, arm), dict(zip(WAYS, (turns, long), strict=True))
    return {
        "arm": arm,
        "sd": {way: figures.deviation(side, arm) for way, side in sides.items()},
        "effect": {way: figures.as_json(figures.effect(side, arm)) for way, side in sides.items()},
        "turns_over_long": figures.as_json(apart),
        "agreement": figures.agreement(apart),
        "blocks_for_2_percent": {way: figures.blocks_for(side, arm, 0.02) for way, side in sides.items()},
    }


def lines_of(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of a comparison."""
    each = "; ".join(f"part {part}: {blocks['turns']} and {blocks['long']}" for part, blocks in found["blocks"].items())
    yield f"\n{found['design']}: effects in turns against those of long trials; 95 % intervals"
    yield f"  blocks in turns, and of long trials: {each}"
    yield f"  {'arm':34} {'sd turns':>8} {'sd long':>8}  {'effect in turns':20} {'effect long':20} {'their ratio':20}"
    for row in found["arms"]:
        sd = [f"{value:.4f}" if value is not None else "-" for value in row["sd"].values()]
        effects = [shown(one, ".3f") for one in row["effect"].values()]
        yield (f"  {row['arm']:34} {sd[0]:>8} {sd[1]:>8}  {effects[0]:20} {effects[1]:20} "
               f"{shown(row['turns_over_long'], '.3f'):20} {row['agreement']}")  # fmt: skip


def said_of(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines with the arms that disagree and those that are undecided."""
    apart = [row["arm"] for row in found["arms"] if row["agreement"] == "DISAGREE"]
    yield f"  arms that disagree by more than 3 %: {', '.join(apart) or 'none'}"
    open_ = [row["arm"] for row in found["arms"] if row["agreement"] not in ("DISAGREE", "agree")]
    yield f"  not decided: {', '.join(open_) or 'none'}"


def write(chosen: argparse.Namespace) -> None:
    """Write agreement.json for all parts, and print its tables."""
    there = parts.chosen_parts(chosen)
    is_paired = all(part.plan.get("paired") for part in there)
    compare, table = (paired.compared, paired.lines_of) if is_paired else (compared, lines_of)
    way = "-paired" if is_paired else "-turns"
    names = sorted({path.parent.name.removesuffix(way) for one in there for path in one.path.glob(f"*{way}/run.json")})
    found = [one for name in names if (one := compare(there, name))]
    document = {"schema": 1, "command": ["selfbench", *sys.argv[1:]], "parts": parts.as_json(there), "designs": found}
    write_whole(chosen.to / "agreement.json", json.dumps(document, indent=1) + "\n")
    print("\n".join(parts.told(there)))
    print("\n".join(line for one in found for line in (*table(one), *said_of(one))) or "nothing is compared yet")


def measure(chosen: argparse.Namespace) -> int:
    """Measure, then write the results of all parts, even if the measurement was interrupted."""
    status = attempted(lambda: run(chosen)) if chosen.minutes > 0 else 0
    return attempted(lambda: write(chosen)) or status

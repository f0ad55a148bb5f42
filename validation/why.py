"""How often explanations are right, for synthetic accounts (`simulated`) and for real added costs (`injected`).

    python -m validation.why simulated --runs 200
    python -m validation.why injected --python PYTHON_WITH_TORCH
    python -m validation.why overhead --blocks 200 --python PYTHON_WITH_TORCH    # what the counters cost

A cell adds a cost of one kind and size to one environment. Its explanation is right if the cost's part is within 10
points of the truth, and the intervals of all parts together contain the truth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Plan
from envmatrix.stats.attribution.explanation import Explanation, explain
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.measurements import Measurements, TrialOrder
from envmatrix.stats.step_account import COLUMNS, PARTS
from envmatrix.stats.trial_text_counts import ArmFacts
from tests.synthetic import make_plan, make_run
from validation import why_injected, why_overhead

Floats = NDArray[np.float64]
STEPS = 30
#: A typical step: seconds by part, and events; the cost of one fault.
USUAL = {"kernel": 6e-3, "user": 26e-3, "waiting": 0.5e-3, "blocked": 1e-3}
EVENTS = {"minor_faults": 2600.0, "major_faults": 0.0, "voluntary_switches": 2.0, "involuntary_switches": 8.0}
FAULT_S = 2.5e-6
#: Noise as fractions: each part of a trial, the shared drift of a block, a part's own drift.
NOISE, DRIFT, PART_DRIFT = 0.02, 0.05, 0.02
#: The largest error of an attributed share that counts as right.
CLOSE = 0.10


@dataclass(frozen=True)
class Cell:
    """A cost: the seconds by part, and the events, that it adds to a step."""

    name: str
    parts: Mapping[str, float] = field(default_factory=dict)
    events: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def cells() -> Iterator[Cell]:
    """Yield each kind of cost in two or three sizes (negative: a shorter step); the last cell adds no cost."""
    memory, sleeps = "memory is returned to Linux and faulted in again", "threads sleep between parallel regions"
    for size in (3e-3, -2.4e-3, 9e-3):
        times = f"{1e3 * size:+.1f} ms"
        yield Cell(f"page faults {times}", {"kernel": size}, {"minor_faults": size / FAULT_S}, memory)
        yield Cell(f"user {times}", {"user": size})
        yield Cell(f"kernel lock {times}", {"kernel": size})
        if size > 0:
            yield Cell(f"sleeps {times}", {"blocked": size}, {"voluntary_switches": 80.0}, sleeps)
            yield Cell(f"no CPU {times}", {"waiting": size}, {"involuntary_switches": 40.0})
            yield Cell(
                f"two at once {times}", {"blocked": size, "user": -size / 3}, {"voluntary_switches": 80.0}, sleeps
            )
    yield Cell("nothing")


def measured_of(plan: Plan, cell: Cell, blocks: int, tick_s: float, chance: np.random.Generator) -> Measurements:
    """Return synthetic trials in which the environment ``other`` has the cost of a cell.

    The kernel samples user and kernel time every ``tick_s`` (0: it counts them exactly).
    """
    arms, shape = [arm.name for arm in plan.arms], (len(plan.arms), blocks)
    mine = np.array([arm.environment == "other" for arm in plan.arms], dtype=np.float64)[:, None]
    drift = np.exp(chance.normal(0, DRIFT, blocks))
    parts = {
        name: (usual + mine * cell.parts.get(name, 0.0)) * drift * np.exp(chance.normal(0, PART_DRIFT, blocks))
        * np.exp(chance.normal(0, NOISE, shape)) * STEPS
        for name, usual in USUAL.items()
    }  # fmt: skip
    whole, cpu = sum(parts.values()), parts["user"] + parts["kernel"]
    kernel = parts["kernel"]
    if tick_s:
        ticks = np.maximum(1, np.round(cpu / tick_s).astype(np.int64))
        kernel = cpu * chance.binomial(ticks, kernel / cpu) / ticks
    events = {
        name: chance.poisson(np.maximum(0.0, (usual + mine * cell.events.get(name, 0.0)) * STEPS) * np.ones(shape))
        for name, usual in EVENTS.items()
    }
    table = {f"thread.{name}": values.astype(np.float64) for name, values in events.items()}
    table |= {"thread.user": cpu - kernel, "thread.kernel": kernel, "thread.waiting": parts["waiting"]}
    table |= {"price.minor_faults": FAULT_S * np.exp(chance.normal(0, 0.05, shape))}
    table |= {"counted_s": whole, "steps": np.full(shape, float(STEPS)), "samples_per_s": 64 * STEPS / whole}
    nothing = np.full(shape, np.nan)
    names = (
        *COLUMNS,
        "value",
        "steal_ticks",
        "run_delay_s",
        "throttled_s",
        "first_half_extra_s",
        "others_s",
        "user_s",
        "system_s",
        "started",
    )
    table = {**dict.fromkeys(names, nothing), **table}
    none = np.zeros(0, dtype=np.int64)
    order = TrialOrder(none, none, none, np.zeros(0), {})
    facts = {name: ArmFacts() for name in arms}
    return Measurements(
        tuple(arms), np.arange(blocks), table, facts, order, (), np.ones(shape, dtype=np.bool_)
    )  # fmt: skip


@dataclass
class Counts:
    """Numbers of runs of one cell, by result."""

    runs: int = 0
    shown: int = 0
    close: int = 0
    covered: int = 0
    named: int = 0
    wrong: int = 0

    def add(self, found: Explanation | None, cell: Cell) -> None:
        """Count a run."""
        self.runs += 1
        if found is None:
            return
        self.shown += 1
        whole = sum(cell.parts.values())
        truths = {name: cell.parts.get(name, 0.0) for name in PARTS}
        self.covered += all(part.change.low <= truths[part.name] <= part.change.high for part in found.parts.parts)  # type: ignore[operator]
        self.close += whole != 0 and all(
            abs(part.change.mean - truths[part.name]) <= CLOSE * max(abs(t) for t in truths.values())
            for part in found.parts.parts
            if part.name in cell.parts
        )
        names = [one.rule.name for one in found.findings]
        self.named += cell.reason in names
        self.wrong += any(name != cell.reason for name in names)


def simulate(runs: int, blocks: int, tick_s: float = 4e-3, seed: int = 1) -> dict[str, Counts]:
    """Return the counts of ``runs`` synthetic runs for each cell."""
    plan = make_plan(("other", *(f"e{number}" for number in range(5))), min_blocks=min(6, blocks))
    run, chance = make_run(plan), np.random.default_rng(seed)
    found: dict[str, Counts] = {}
    for cell in cells():
        counts = found.setdefault(cell.name, Counts())
        for _ in range(runs):
            measured = measured_of(plan, cell, blocks, tick_s, chance)
            analysis = estimate(plan, measured, workloads=run.workloads, metrics=())
            counts.add(explain(run, measured, analysis).get("other:cnn@local"), cell)
    return found


def table(found: Mapping[str, Counts]) -> list[str]:
    """Return a line per cell: shown effects and wrong names per run, the other shares per shown effect."""
    lines = [f"{'cost':24} {'shown':>6} {'within 10 points':>17} {'covered':>8} {'right name':>11} {'wrong name':>11}"]
    for name, one in found.items():
        of = max(1, one.shown)
        shares = (one.close / of, one.covered / of, one.named / of, one.wrong / max(1, one.runs))
        texts = [f"{share:.0%}" if one.shown else "-" for share in shares]
        lines.append(
            f"{name:24} {one.shown / one.runs:>6.0%} {texts[0]:>17} {texts[1]:>8} {texts[2]:>11} {texts[3]:>11}"
        )
    return lines


def main() -> int:
    """Run one of the two checks and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=("simulated", "injected", "overhead"))
    parser.add_argument("--runs", type=int, default=200, help="made-up runs of each cell")
    parser.add_argument("--tick", type=float, default=4.0, help="ms between the kernel's samples (0: exact)")
    parser.add_argument("--blocks", type=int, default=8, help="blocks of a run")
    why_overhead.add_arguments(parser)
    chosen = parser.parse_args()
    lines: Iterable[str]
    if chosen.check == "injected":
        lines = why_injected.table(chosen.blocks, chosen.python)
    elif chosen.check == "overhead":
        lines = why_overhead.table(chosen)
    else:
        lines = table(simulate(chosen.runs, chosen.blocks, chosen.tick / 1e3))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

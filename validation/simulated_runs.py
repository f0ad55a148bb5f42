"""Gates on a machine whose runs differ from day to day: false failures, and true losses found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.comparisons.result import status_of
from envmatrix.stats.effects import LEVEL, draw_conclusion
from envmatrix.stats.inference.welch import FEWEST_RUNS, Mean, Quotient, compare_with_runs, mean_of_logs, quotient
from envmatrix.stats.pairing import summarise_pairs
from validation.noise import NOISES
from validation.simulated import SIZE, Figure, Floats, over_two_copies, rate, trials_of

_BLOCKS = 10
_DAYS = (0.0, 0.01, 0.02, 0.05)
_LOST = (0.0, 0.05, 0.15)
Judge = Callable[[list[Mean], Mean], Quotient]


def _rows(machine: str, runs: int, olds: int, chance: np.random.Generator) -> list[list[Mean]]:
    """Return, for each of ``runs`` repeats, the means of ``olds`` runs and a new one, without day effects."""
    logs = -NOISES[machine](runs * (olds + 1), _BLOCKS, SIZE, chance)
    found = [mean for mean in (mean_of_logs(one, 2) for one in logs) if mean]
    return [found[start : start + olds + 1] for start in range(0, len(found), olds + 1)]


def _exits(rows: list[list[Mean]], days: Floats, judge: Judge) -> NDArray[np.bool_]:
    found = []
    for row, moved in zip(rows, days, strict=True):
        *olds, new = (replace(mean, mean=mean.mean + float(by)) for mean, by in zip(row, moved, strict=True))
        found.append(status_of(None, judge(olds, new).high, 0.0) == "slower")
    return np.array(found, dtype=np.bool_)


def _question(lost: float) -> str:
    return f"{lost:.0%} lost: exit 5" if lost else "nothing lost: exit 5"


def _of_two(olds: list[Mean], new: Mean) -> Quotient:
    return quotient(olds[0], new)


def stored(machine: str, day: float, runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    """Compare a run with stored ones, after a true loss of nothing, 5 % or 15 %."""
    name = f"day-to-day {day:.0%}"
    for olds in (3, 5, 10):
        rows, days = _rows(machine, runs, olds, chance), chance.normal(0.0, day, (runs, olds + 1))
        for lost in _LOST:
            moved = days - np.log1p(lost) * (np.arange(olds + 1) == olds)
            yield rate(_question(lost), machine, f"{name}, {olds} stored runs", _exits(rows, moved, compare_with_runs))
        if olds == FEWEST_RUNS:
            yield rate(_question(0.0), machine, f"{name}, two runs, Welch's t", _exits(rows, days, _of_two))


def rerun(machine: str, day: float, runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    """Run old and new in the same blocks of one day, with a second copy of old."""
    logs = trials_of(machine, 3, _BLOCKS, runs, chance) + chance.normal(0.0, day, (runs, 1, 1))
    gained = -over_two_copies(logs)[:, 0]
    for lost in _LOST:
        numbers = summarise_pairs(gained - np.log1p(lost))
        rows = zip(numbers.mean.tolist(), numbers.error.tolist(), numbers.units.tolist(), strict=True)
        said = [draw_conclusion(mean, error, units, 1, 2, LEVEL, SIZE) for mean, error, units in rows]
        exits = np.array([status_of(one.low, one.high, 0.0) == "slower" for one in said])
        yield rate(_question(lost), machine, f"day-to-day {day:.0%}, in the same blocks", exits)


def gates(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Simulate both forms of the gate, with a quarter of ``runs`` each."""
    runs = max(20, runs // 4)
    return [figure for day in _DAYS for form in (rerun, stored) for figure in form(machine, day, runs, chance)]

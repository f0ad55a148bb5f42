"""Parts of the difference between one run and several older runs of the same setup, which have no blocks in common.

The parts are as for two environments of one run (``step_parts``), but the intervals are those of ``run_to_run``: they
contain the variation between runs, so they are wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from envmatrix.plan import Arm
from envmatrix.stats.attribution.step_parts import StepParts, Together, parts_of
from envmatrix.stats.comparisons.run_to_run import prediction
from envmatrix.stats.measurements import Measurements, finite_medians
from envmatrix.stats.step_account import accounts, of_thread

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OfRuns(Together):
    """The numbers of one environment in several runs.

    ``differences`` are the values themselves: (1, blocks of all runs). ``ends``: where the blocks of each run end; the
    newest run is the last one.
    """

    ends: tuple[int, ...] = ()

    def estimates(self, values: Floats, held: int, *, own: bool = False) -> tuple[Floats, Floats]:
        """Return the differences of the newest run from the mean of the others, and half-widths of their intervals."""
        mean, error = prediction(*_of_runs(values, self.ends))
        level = self.level ** (1.0 / held)
        critical = stdtrit(len(self.ends) - 2, 1.0 - (1.0 - level) / (2 * self.comparisons))
        return mean, critical * error


def unpaired_parts(
    arm: Arm, names: tuple[str, str], olds: Sequence[Measurements], new: Measurements, comparisons: int, level: float
) -> StepParts | None:
    """Return the parts of an arm's difference between runs; None if a run has not counted them.

    ``names``: of the older run and of the newer one, which become the reference and the environment.
    """
    runs = [(one, [one.arms.index(arm.name)]) for one in (*olds, new)]
    thread = all(of_thread(*run) for run in runs)
    found = [accounts(*run, thread=thread) for run in runs]
    ends = tuple(np.cumsum([one["whole"].shape[1] for one in found]).tolist())
    values = {name: np.concatenate([one[name] for one in found], axis=1) for name in found[0]}
    there = np.isfinite(values["whole"])
    if any(part.sum() < 2 for part in np.split(there[0], ends[:-1])):
        return None
    prices = {name[6:]: finite_medians(numbers, 0) for name, numbers in values.items() if name.startswith("price.")}
    values = {name: np.where(there, numbers, np.nan) for name, numbers in values.items() if name[6:] not in prices}
    means = {name: _of_runs(numbers, ends)[0] for name, numbers in values.items()}
    together = OfRuns(
        f"{names[0]}:{arm.workload}@{arm.engine}",
        (replace(arm, environment=names[1]),),
        values,
        {name: (of_run[:, :-1].mean(axis=1), of_run[:, -1]) for name, of_run in means.items()},
        prices,
        new.apart,
        thread,
        comparisons,
        1,
        level,
        f"with {len(olds)} older runs",
        ends,
    )
    return next(iter(parts_of(together)), None)


def _of_runs(values: Floats, ends: Sequence[int]) -> tuple[Floats, Floats]:
    """Return the mean of each run and its standard error: arrays (rows, runs) from (rows, blocks of all runs)."""
    runs = np.split(values, ends[:-1], axis=1)
    counts = np.stack([np.isfinite(run).sum(axis=1) for run in runs], axis=1)
    means = np.stack([np.nansum(run, axis=1) for run in runs], axis=1) / np.where(counts, counts, np.nan)
    squares = [np.nansum((run - means[:, [index]]) ** 2, axis=1) for index, run in enumerate(runs)]
    return means, np.sqrt(np.stack(squares, axis=1) / np.where(counts > 1, (counts - 1) * counts, np.nan))

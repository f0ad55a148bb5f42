"""Pairing by block: log ratios of arms against their reference, and their summary statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from envmatrix.plan import Arm, Plan
from envmatrix.stats.array_types import Bools, Floats, Integers
from envmatrix.stats.inference.standard_errors import standard_errors_of_row_sums
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric

_MAX_LOG_RATIO = 700.0


@dataclass(frozen=True)
class Family:
    """Arms compared with one reference, with simultaneous intervals.

    The reference is the mean, block by block, of ``copies``: the reference itself, which must be present, and its
    control if present. Two copies reduce the variance of every comparison by a quarter. The control's own comparison,
    against the reference alone, is a separate family. ``beside`` are arms of the same table compared with an
    uninterrupted copy of the reference; their intervals are simultaneous too.
    """

    reference: str
    copies: tuple[str, ...]
    arms: tuple[Arm, ...]
    beside: tuple[Arm, ...] = ()

    @property
    def together(self) -> int:
        """The number of simultaneous comparisons."""
        return len(self.arms) + len(self.beside)


@dataclass(frozen=True)
class PairedStatistics:
    """Paired statistics of m comparisons: arrays of length m. ``spread`` and ``error`` are NaN below 2 pairs.

    ``error`` is the standard error of the mean, worth ``units`` independent blocks.
    """

    blocks: Integers
    mean: Floats
    spread: Floats
    error: Floats
    units: Integers


@dataclass(frozen=True)
class Views:
    """Numbers of rows by block, in one or two views: as measured, and without slow trials if there are any.

    Every conclusion must be true in every view. ``gaps``: see ``standard_errors.block_gaps`` (None: blocks
    are independent).
    """

    every: tuple[Floats, ...]
    gaps: Floats | None = None

    @property
    def with_all_trials(self) -> Floats:
        """The numbers as measured, without leaving out trials."""
        return self.every[0]

    def paired(self) -> tuple[PairedStatistics, ...]:
        """Return the paired statistics of each view."""
        return tuple(summarise_pairs(view, self.gaps) for view in self.every)

    def rows(self, indices: Sequence[int] | Integers) -> Views:
        """Return the numbers of the rows ``indices``."""
        return Views(tuple(view[indices] for view in self.every), self.gaps)

    def stacked_on(self, others: Views) -> Views:
        """Return these rows, followed by the rows of ``others``."""
        return Views(tuple(np.vstack(pair) for pair in zip(self.every, others.every, strict=True)), self.gaps)

    def minus(self, others: Views) -> Views:
        """Return the differences from ``others``, row by row, or from their single row."""
        return Views(tuple(view - other for view, other in zip(self.every, others.every, strict=True)), self.gaps)


def families(plan: Plan) -> list[Family]:
    """Return the families of a plan, without arms whose reference is not in the plan."""
    names = {arm.name for arm in plan.arms}
    compared_arms = [arm for arm in plan.arms if arm.reference in names and arm.reference != arm.name]
    plan_families: list[Family] = []
    for reference in dict.fromkeys(arm.reference for arm in compared_arms if arm.reference):
        arms = [arm for arm in compared_arms if arm.reference == reference]
        controls = tuple(arm for arm in arms if arm.is_control)
        others = tuple(arm for arm in arms if not arm.is_control)
        copies = (reference, *(control.name for control in controls))
        plan_families += [Family(reference, (reference,), controls)] if controls else []
        separate_arms = tuple(
            arm
            for arm in compared_arms
            if arm.reference in _differently_measured_copies(reference, plan) and not arm.is_control
        )
        plan_families += [Family(reference, copies, others, separate_arms)] if others else []
    return plan_families


def _differently_measured_copies(reference: str, plan: Plan) -> set[str]:
    """Return the uninterrupted copies of an interleaved reference, or the interleaved originals of such a copy."""
    reference_arm = next(arm for arm in plan.arms if arm.name == reference)
    return {
        arm.name
        for arm in plan.arms
        if arm.is_uninterrupted_copy is not reference_arm.is_uninterrupted_copy
        and not arm.is_control
        and (arm.runs, arm.workload, arm.engine) == (reference_arm.runs, reference_arm.workload, reference_arm.engine)
    }


def name_with_copy_as_original(name: str | None, plan: Plan) -> str | None:
    """Return the interleaved reference if ``name`` is an uninterrupted copy of it, otherwise ``name``."""
    copy = next((arm for arm in plan.arms if arm.name == name and arm.is_uninterrupted_copy), None)
    return next(iter(_differently_measured_copies(copy.name, plan)), name) if copy else name


def table_identity(arm: Arm, plan: Plan) -> tuple[str, str]:
    """Return workload and engine of the table that contains an arm: those of its reference, on one engine.

    A workload that changes the program is thus in the table of the workload it is compared with.
    """
    reference = next((other for other in plan.arms if other.name == arm.reference), arm)
    return (reference.workload if reference.engine == arm.engine else arm.workload), arm.engine


def logs_of(values: Floats) -> Floats:
    """Return logs, with NaN if a number is missing or not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values > 0, np.log(values), np.nan)


def ratio_from_log(log: float) -> float:
    """Return the ratio of a log ratio, limited to the range of a float."""
    return math.exp(min(max(log, -_MAX_LOG_RATIO), _MAX_LOG_RATIO))


def mean_copies(logs: Floats) -> Floats:
    """Return the mean over the logs (c, blocks) of a reference's copies; NaN if the first one is missing."""
    is_present = np.isfinite(logs)
    mean = np.where(is_present, logs, 0.0).sum(axis=0) / np.maximum(is_present.sum(axis=0), 1)
    return np.where(is_present[0], mean, np.nan)


def log_ratios_over_copy_mean(logs: Floats, copies: int) -> Floats:
    """Return the log ratios of the other rows over the mean of the first ``copies`` rows."""
    return np.asarray(logs[copies:] - mean_copies(logs[:copies]))


def reference_logs(copies: Floats) -> Floats:
    """Return the mean log over the copies (c, blocks) of a reference; NaN if the first one is missing."""
    return mean_copies(logs_of(copies))


def log_ratios(arms: Floats, copies: Floats, metric: Metric) -> Floats:
    """Return the paired log ratios, positive if the arm is better.

    ``arms`` is (m, blocks), ``copies`` is (c, blocks) or (blocks,), both in the metric's unit. The result is (m,
    blocks), with NaN if either number is missing or not positive.
    """
    return np.asarray(metric.sign * (logs_of(arms) - reference_logs(np.atleast_2d(copies))))


def summarise_pairs(differences: Floats, gaps: Floats | None = None) -> PairedStatistics:
    """Summarise the finite values of (m, blocks) differences; ``gaps``: see ``standard_errors.block_gaps``."""
    # numpy's nanmean and nanstd are not used: they warn about arms without a pair.
    is_present = np.isfinite(differences)
    count = is_present.sum(axis=1)
    mean = np.where(is_present, differences, 0.0).sum(axis=1) / np.maximum(count, 1)
    parts = np.where(is_present, differences - mean[:, None], 0.0)
    spread = np.sqrt((parts**2).sum(axis=1) / np.where(count > 1, count - 1, np.nan))
    error, units = standard_errors_of_row_sums(parts / np.maximum(count, 1)[:, None], is_present, gaps)
    return PairedStatistics(count, np.where(count > 0, mean, np.nan), spread, error, units)


def rescale_uninterrupted_arms(
    plan: Plan, measured: Measurements, primary: Mapping[str, Metric], slow: Bools
) -> tuple[Measurements, Bools]:
    """Return the primary numbers and the slow-trial mask as if all compared arms had been interleaved.

    In each block, numbers of uninterrupted arms are multiplied by the interleaved reference over its uninterrupted
    copy. Their ratios to their references are kept, so they can be compared with interleaved arms.
    """
    table, slow_marks = dict(measured.table), slow.copy()
    index = {name: row for row, name in enumerate(measured.arms)}
    plan_families = families(plan)
    for family in plan_families:
        original = name_with_copy_as_original(family.reference, plan)
        if original == family.reference:
            continue
        all_copies = (candidate.copies for candidate in plan_families if candidate.reference == original)
        copy_rows = [index[str(name)] for name in max(all_copies, key=len, default=(original,))]
        separate_rows = [index[name] for name in (family.reference, *(arm.name for arm in family.arms))]
        metric = primary[family.arms[0].workload].name
        logs = logs_of(table[metric])
        values = table[metric].copy()
        values[separate_rows] *= np.exp(mean_copies(logs[copy_rows]) - logs[separate_rows[0]])
        table[metric] = values
        if slow.size:
            slow_marks[separate_rows] |= slow[[*copy_rows, separate_rows[0]]].any(axis=0)
    return replace(measured, table=table), slow_marks

"""Checks of equal work: a speed-up counts only if the arm did the same work as its reference."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, Plan
from envmatrix.stats.array_types import Floats
from envmatrix.stats.measurements import Measurements

#: Tolerances in addition to the spread of baseline and control. Other OpenMP runtimes or BLAS sum in another order, so
#: losses differ from the fourth digit on, more with more steps. Skipped work or divergence changes them far more.
LOSS_RELATIVE = 0.05
LOSS_ABSOLUTE = 0.005
ACCURACY_ABSOLUTE = 0.02
_EXACT_COLUMNS = ("samples", "steps", "parameters")


def _reference_copies(arm: Arm, plan: Plan) -> list[str]:
    """Return the reference and its other copies (the control), without the arm itself."""
    reference = next(other for other in plan.arms if other.name == arm.reference)
    return [
        other.name
        for other in plan.arms
        if other.name != arm.name
        and (other.runs, other.workload, other.engine) == (reference.runs, reference.workload, reference.engine)
        and other.is_uninterrupted_copy
        is reference.is_uninterrupted_copy  # interleaved trials take extra steps, so losses may differ
    ]


@dataclass(frozen=True)
class _ArmResults:
    """The results of several arms of one run, taken together."""

    measured: Measurements
    arms: Sequence[str]

    def values(self, column: str) -> Floats:
        if column not in self.measured.table:
            return np.empty(0)
        values = np.concatenate([self.measured.of(name, column) for name in self.arms])
        return np.asarray(values[~np.isnan(values)])

    @property
    def ok(self) -> int:
        return sum(self.measured.facts[name].outcomes["ok"] for name in self.arms)

    @property
    def tolerances(self) -> dict[str, float]:
        """The tolerance of each check, from the first arm that has it."""
        arm_tolerances = [self.measured.facts[name].tolerances for name in self.arms]
        return {column: allowed for checks in reversed(arm_tolerances) for column, allowed in checks.items()}

    @property
    def work(self) -> set[str]:
        return {digest for name in self.arms for digest in self.measured.facts[name].work}


def _is_outside_range(values: Floats, reference_values: Floats, tolerance: float) -> bool:
    """Return whether a trial is outside the reference's range, widened by its own width and the tolerance."""
    reach = float(reference_values.max() - reference_values.min()) + tolerance
    return bool((values > reference_values.max() + reach).any() or (values < reference_values.min() - reach).any())


def _number_differs(arm_side: _ArmResults, reference_side: _ArmResults, column: str) -> str | None:
    """Return how loss, accuracy or an own check differs from the reference by more than is allowed, None if not."""
    values, reference_values = arm_side.values(column), reference_side.values(column)
    own_tolerance = reference_side.tolerances.get(column)
    name, digits = (f"final {column}", 4) if own_tolerance is None else (column.partition(".")[2], 6)
    if reference_values.size and values.size < arm_side.ok:
        return f"some of its trials have no {name}"
    reference_values = reference_values[np.isfinite(reference_values)]
    if not reference_values.size:
        return None
    middle = float(np.median(reference_values))
    if own_tolerance is not None:
        tolerance = own_tolerance * abs(middle)
    else:
        tolerance = LOSS_RELATIVE * abs(middle) + LOSS_ABSOLUTE if column == "loss" else ACCURACY_ABSOLUTE
    if not _is_outside_range(values, reference_values, tolerance):
        return None
    worst, least, most = values[np.argmax(np.abs(values - middle))], reference_values.min(), reference_values.max()
    return f"{name} {worst:.{digits}g}, reference {least:.{digits}g} to {most:.{digits}g}"


def _amount_differs(arm_side: _ArmResults, reference_side: _ArmResults, column: str) -> str | None:
    values, reference_values = set(arm_side.values(column)), set(reference_side.values(column))
    if values and reference_values and values != reference_values:
        return f"{column} {sorted(values)[0]:,.0f}, reference {sorted(reference_values)[0]:,.0f}"
    return None


def _differences(arm_side: _ArmResults, reference_side: _ArmResults) -> tuple[str, ...]:
    if not arm_side.ok:
        return ()
    texts = [_number_differs(arm_side, reference_side, column) for column in ("loss", "accuracy")]
    texts += [_amount_differs(arm_side, reference_side, column) for column in _EXACT_COLUMNS]
    texts += [_number_differs(arm_side, reference_side, column) for column in reference_side.tolerances]
    if reference_side.work and arm_side.work != reference_side.work:
        texts.append("workload digest differs")
    return tuple(text for text in texts if text)


def unequal_work(measured: Measurements, arm: Arm, plan: Plan) -> tuple[str, ...]:
    """Return the results in which ``arm`` differs from its reference by more than the reference's copies do.

    For every single trial, final loss and accuracy must be in the range of the reference and its control. That range is
    widened by its own width and a small tolerance. The numbers of samples, steps and parameters and the workload's
    digest must be equal. Checks of a user's program have their own tolerances, relative to the median of the reference.
    If a side has no successful trial, there is nothing to compare and no difference.
    """
    return _differences(_ArmResults(measured, [arm.name]), _ArmResults(measured, _reference_copies(arm, plan)))


def work_differences_between_runs(old: Measurements, new: Measurements, arm: str) -> tuple[str, ...]:
    """Return the results in which an arm of a newer run differs from an older one, as ``unequal_work`` does."""
    return _differences(_ArmResults(new, [arm]), _ArmResults(old, [arm]))


def unstable_checks(measured: Measurements, plan: Plan, workload: str) -> dict[str, str]:
    """Return the unstable checks with a reason: their number varies within the reference, whose work is the same.

    It varies by more than the tolerance and more than a loss may differ, so skipped work could go unnoticed.
    """
    unstable: dict[str, str] = {}
    for name in dict.fromkeys(arm.reference for arm in plan.arms if arm.reference and arm.workload == workload):
        copy = next((arm for arm in plan.arms if arm.reference == name and arm.workload == workload), None)
        if copy is None or name not in measured.facts:
            continue
        own = _ArmResults(measured, list(dict.fromkeys([name, *_reference_copies(copy, plan)])))
        for column, allowed in own.tolerances.items():
            values = own.values(column)
            values = values[np.isfinite(values)]
            middle = abs(float(np.median(values))) if values.size else 0.0
            if values.size > 1 and float(np.ptp(values)) > max(allowed, LOSS_RELATIVE) * middle:
                check, where = column.partition(".")[2], name.partition(":")[0]
                unstable[check] = (
                    f"{check} cannot be used as a check: in {where} itself it varies from {values.min():.4g} to "
                    f"{values.max():.4g}, more than its tolerance of {100 * allowed:g}%"
                )
    return unstable


def unchecked(workload: Workload | None, unstable: Collection[str] = ()) -> bool:
    """Return whether equal work is not checked: the program is the user's own and has no stable check."""
    return workload is not None and bool(workload.command) and len(unstable) >= len(workload.check)

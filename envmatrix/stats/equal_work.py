"""Equal work: a speed-up counts only when the arm did what its reference did."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, Plan
from envmatrix.stats.measurements import Measurements

#: Tolerances beyond the spread that the baseline and its control show among themselves. Another OpenMP
#: runtime or BLAS sums in another order, so losses differ from the fourth digit on, and the difference grows
#: with the steps; a run that skipped work or diverged is off by far more.
LOSS_RELATIVE = 0.05
LOSS_ABSOLUTE = 0.005
ACCURACY_ABSOLUTE = 0.02
_EXACT_COLUMNS = ("samples", "steps", "parameters")
Floats = NDArray[np.float64]


def _reference_copies(arm: Arm, plan: Plan) -> list[str]:
    """Return the reference and every other copy of it (the control), less the arm itself."""
    reference = next(other for other in plan.arms if other.name == arm.reference)
    return [
        other.name
        for other in plan.arms
        if other.name != arm.name
        and (other.runs, other.workload, other.engine) == (reference.runs, reference.workload, reference.engine)
        and other.is_alone is reference.is_alone  # turns take further steps, so that other losses are equal work
    ]


@dataclass(frozen=True)
class _ArmResults:
    """Arms of one run whose results are taken together."""

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
        """What each check allows, as the first arm that has it says."""
        arm_tolerances = [self.measured.facts[name].tolerances for name in self.arms]
        return {column: allowed for checks in reversed(arm_tolerances) for column, allowed in checks.items()}

    @property
    def work(self) -> set[str]:
        return {digest for name in self.arms for digest in self.measured.facts[name].work}


def _is_outside_range(values: Floats, reference_values: Floats, tolerance: float) -> bool:
    """Whether any trial lies outside the twins' range, widened by that range once more and the tolerance."""
    reach = float(reference_values.max() - reference_values.min()) + tolerance
    return bool((values > reference_values.max() + reach).any() or (values < reference_values.min() - reach).any())


def _result_differs(arm_side: _ArmResults, reference_side: _ArmResults, column: str) -> str | None:
    values, reference_values = arm_side.values(column), reference_side.values(column)
    if not reference_values.size:
        return None
    if values.size < arm_side.ok:
        return f"some of its trials have no final {column}"
    reference_values = reference_values[np.isfinite(reference_values)]
    if not reference_values.size:
        return None
    tolerance = (
        LOSS_RELATIVE * abs(float(np.median(reference_values))) + LOSS_ABSOLUTE
        if column == "loss"
        else ACCURACY_ABSOLUTE
    )
    if values.size and _is_outside_range(values, reference_values, tolerance):
        worst = values[np.argmax(np.abs(values - np.median(reference_values)))]
        return f"final {column} {worst:.4g}, reference {reference_values.min():.4g} to {reference_values.max():.4g}"
    return None


def _check_differs(arm_side: _ArmResults, reference_side: _ArmResults, column: str) -> str | None:
    values, reference_values = arm_side.values(column), reference_side.values(column)
    reference_values = reference_values[np.isfinite(reference_values)]
    name = column.partition(".")[2]
    if reference_values.size and values.size < arm_side.ok:
        return f"some of its trials have no {name}"
    if reference_values.size and _is_outside_range(
        values, reference_values, reference_side.tolerances[column] * abs(float(np.median(reference_values)))
    ):
        worst = values[np.argmax(np.abs(values - np.median(reference_values)))]
        return f"{name} {worst:.6g}, reference {reference_values.min():.6g} to {reference_values.max():.6g}"
    return None


def _amount_differs(arm_side: _ArmResults, reference_side: _ArmResults, column: str) -> str | None:
    values, reference_values = set(arm_side.values(column)), set(reference_side.values(column))
    if values and reference_values and values != reference_values:
        return f"{column} {sorted(values)[0]:,.0f}, reference {sorted(reference_values)[0]:,.0f}"
    return None


def _differences(arm_side: _ArmResults, reference_side: _ArmResults) -> tuple[str, ...]:
    if not arm_side.ok:
        return ()
    texts = [_result_differs(arm_side, reference_side, column) for column in ("loss", "accuracy")]
    texts += [_amount_differs(arm_side, reference_side, column) for column in _EXACT_COLUMNS]
    texts += [_check_differs(arm_side, reference_side, column) for column in reference_side.tolerances]
    if reference_side.work and arm_side.work != reference_side.work:
        texts.append("workload digest differs")
    return tuple(text for text in texts if text)


def unequal_work(measured: Measurements, arm: Arm, plan: Plan) -> tuple[str, ...]:
    """Say in which results ``arm`` differs from its reference by more than copies of the reference differ.

    Final loss and accuracy of every single trial must lie in the range that the reference and its control
    show, widened by the width of that range and a small tolerance; numbers of samples, steps and
    parameters, and the workload's digest, must be the same. Nothing to compare (no ok trial on one side) is
    no difference. So must the checks of a user's own program, each with its own tolerance, of the median of the
    reference's.
    """
    return _differences(_ArmResults(measured, [arm.name]), _ArmResults(measured, _reference_copies(arm, plan)))


def work_differences_between_runs(old: Measurements, new: Measurements, arm: str) -> tuple[str, ...]:
    """Say in which results an arm of a newer run differs from that of an older one, as ``unequal_work`` does."""
    return _differences(_ArmResults(new, [arm]), _ArmResults(old, [arm]))


def unstable_checks(measured: Measurements, plan: Plan, workload: str) -> dict[str, str]:
    """Return the checks that are none, with why: their number varies in the reference itself, whose work is the same.

    By more than is allowed, and by more than a loss may differ: what skips work could hide in that range.
    """
    found: dict[str, str] = {}
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
                found[check] = (
                    f"{check} cannot be used as a check: in {where} itself it varies from {values.min():.4g} to "
                    f"{values.max():.4g}, more than its tolerance of {100 * allowed:g}%"
                )
    return found


def unchecked(workload: Workload | None, unstable: Collection[str] = ()) -> bool:
    """Whether nothing shows that a program did equal work everywhere: it is the user's own, without a stable check."""
    return workload is not None and bool(workload.command) and len(unstable) >= len(workload.check)

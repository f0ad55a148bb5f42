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
_EXACT = ("samples", "steps", "parameters")
Floats = NDArray[np.float64]


def _twins(arm: Arm, plan: Plan) -> list[str]:
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
class _Side:
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
        every = [self.measured.facts[name].tolerances for name in self.arms]
        return {column: allowed for one in reversed(every) for column, allowed in one.items()}

    @property
    def work(self) -> set[str]:
        return {digest for name in self.arms for digest in self.measured.facts[name].work}


def _outside(own: Floats, twins: Floats, tolerance: float) -> bool:
    """Whether any trial lies outside the twins' range, widened by that range once more and the tolerance."""
    reach = float(twins.max() - twins.min()) + tolerance
    return bool((own > twins.max() + reach).any() or (own < twins.min() - reach).any())


def _result_differs(own_side: _Side, twins: _Side, column: str) -> str | None:
    own, other = own_side.values(column), twins.values(column)
    if not other.size:
        return None
    if own.size < own_side.ok:
        return f"no final {column} in some of its trials"
    other = other[np.isfinite(other)]
    if not other.size:
        return None
    size = LOSS_RELATIVE * abs(float(np.median(other))) + LOSS_ABSOLUTE if column == "loss" else ACCURACY_ABSOLUTE
    if own.size and _outside(own, other, size):
        worst = own[np.argmax(np.abs(own - np.median(other)))]
        return f"final {column} {worst:.4g}, reference {other.min():.4g} to {other.max():.4g}"
    return None


def _check_differs(own_side: _Side, twins: _Side, column: str) -> str | None:
    own, other = own_side.values(column), twins.values(column)
    other = other[np.isfinite(other)]
    name = column.partition(".")[2]
    if other.size and own.size < own_side.ok:
        return f"no {name} in some of its trials"
    if other.size and _outside(own, other, twins.tolerances[column] * abs(float(np.median(other)))):
        worst = own[np.argmax(np.abs(own - np.median(other)))]
        return f"{name} {worst:.6g}, reference {other.min():.6g} to {other.max():.6g}"
    return None


def _amount_differs(own_side: _Side, twins: _Side, column: str) -> str | None:
    own, other = set(own_side.values(column)), set(twins.values(column))
    if own and other and own != other:
        return f"{column} {sorted(own)[0]:,.0f}, reference {sorted(other)[0]:,.0f}"
    return None


def _differences(own: _Side, twins: _Side) -> tuple[str, ...]:
    if not own.ok:
        return ()
    found = [_result_differs(own, twins, column) for column in ("loss", "accuracy")]
    found += [_amount_differs(own, twins, column) for column in _EXACT]
    found += [_check_differs(own, twins, column) for column in twins.tolerances]
    if twins.work and own.work != twins.work:
        found.append("workload digest differs")
    return tuple(text for text in found if text)


def unequal_work(measured: Measurements, arm: Arm, plan: Plan) -> tuple[str, ...]:
    """Say in which results ``arm`` differs from its reference by more than copies of the reference differ.

    Final loss and accuracy of every single trial must lie in the range that the reference and its control
    show, widened by the width of that range and a small tolerance; numbers of samples, steps and
    parameters, and the workload's digest, must be the same. Nothing to compare (no ok trial on one side) is
    no difference. So must the checks of a user's own program, each with its own tolerance, of the median of the
    reference's.
    """
    return _differences(_Side(measured, [arm.name]), _Side(measured, _twins(arm, plan)))


def other_work(old: Measurements, new: Measurements, arm: str) -> tuple[str, ...]:
    """Say in which results an arm of a newer run differs from that of an older one, as ``unequal_work`` does."""
    return _differences(_Side(new, [arm]), _Side(old, [arm]))


def unstable_checks(measured: Measurements, plan: Plan, workload: str) -> dict[str, str]:
    """Return the checks that are none, with why: their number varies in the reference itself, whose work is the same.

    By more than is allowed, and by more than a loss may differ: what skips work could hide in that range.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(arm.reference for arm in plan.arms if arm.reference and arm.workload == workload):
        copy = next((arm for arm in plan.arms if arm.reference == name and arm.workload == workload), None)
        if copy is None or name not in measured.facts:
            continue
        own = _Side(measured, list(dict.fromkeys([name, *_twins(copy, plan)])))
        for column, allowed in own.tolerances.items():
            values = own.values(column)
            values = values[np.isfinite(values)]
            middle = abs(float(np.median(values))) if values.size else 0.0
            if values.size > 1 and float(np.ptp(values)) > max(allowed, LOSS_RELATIVE) * middle:
                check, where = column.partition(".")[2], name.partition(":")[0]
                found[check] = (
                    f"{check} is {values.min():.4g} to {values.max():.4g} in {where} itself, beyond its tolerance of "
                    f"{100 * allowed:g}%: that is no check"
                )
    return found


def unchecked(workload: Workload | None, unstable: Collection[str] = ()) -> bool:
    """Whether nothing shows that a program did equal work everywhere: it is the user's own, without a stable check."""
    return workload is not None and bool(workload.command) and len(unstable) >= len(workload.check)

"""Equal work: a speed-up counts only when the arm did what its reference did."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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


def _values(measured: Measurements, names: list[str], column: str) -> Floats:
    values = np.concatenate([measured.of(name, column) for name in names])
    return np.asarray(values[~np.isnan(values)])


def _outside(own: Floats, twins: Floats, tolerance: float) -> bool:
    """Whether any trial lies outside the twins' range, widened by that range once more and the tolerance."""
    reach = float(twins.max() - twins.min()) + tolerance
    return bool((own > twins.max() + reach).any() or (own < twins.min() - reach).any())


def _result_differs(measured: Measurements, arm: Arm, twins: list[str], column: str) -> str | None:
    own, other = _values(measured, [arm.name], column), _values(measured, twins, column)
    if not other.size:
        return None
    if own.size < measured.facts[arm.name].outcomes["ok"]:
        return f"no final {column} in some of its trials"
    other = other[np.isfinite(other)]
    if not other.size:
        return None
    size = LOSS_RELATIVE * abs(float(np.median(other))) + LOSS_ABSOLUTE if column == "loss" else ACCURACY_ABSOLUTE
    if own.size and _outside(own, other, size):
        worst = own[np.argmax(np.abs(own - np.median(other)))]
        return f"final {column} {worst:.4g}, reference {other.min():.4g} to {other.max():.4g}"
    return None


def _check_differs(measured: Measurements, arm: Arm, twins: list[str], column: str) -> str | None:
    own, other = _values(measured, [arm.name], column), _values(measured, twins, column)
    other = other[np.isfinite(other)]
    tolerance = next(facts[column] for facts in _tolerances(measured, twins) if column in facts)
    name = column.partition(".")[2]
    if other.size and own.size < measured.facts[arm.name].outcomes["ok"]:
        return f"no {name} in some of its trials"
    if other.size and _outside(own, other, tolerance * abs(float(np.median(other)))):
        worst = own[np.argmax(np.abs(own - np.median(other)))]
        return f"{name} {worst:.6g}, reference {other.min():.6g} to {other.max():.6g}"
    return None


def _tolerances(measured: Measurements, arms: list[str]) -> list[dict[str, float]]:
    return [measured.facts[name].tolerances for name in arms]


def _amount_differs(measured: Measurements, arm: Arm, twins: list[str], column: str) -> str | None:
    own, other = set(_values(measured, [arm.name], column)), set(_values(measured, twins, column))
    if own and other and own != other:
        return f"{column} {sorted(own)[0]:,.0f}, reference {sorted(other)[0]:,.0f}"
    return None


def unequal_work(measured: Measurements, arm: Arm, plan: Plan) -> tuple[str, ...]:
    """Say in which results ``arm`` differs from its reference by more than copies of the reference differ.

    Final loss and accuracy of every single trial must lie in the range that the reference and its control
    show, widened by the width of that range and a small tolerance; numbers of samples, steps and
    parameters, and the workload's digest, must be the same. Nothing to compare (no ok trial on one side) is
    no difference. So must the checks of a user's own program, each with its own tolerance, of the median of the
    reference's.
    """
    twins = _twins(arm, plan)
    if not measured.facts[arm.name].outcomes["ok"]:
        return ()
    found = [_result_differs(measured, arm, twins, column) for column in ("loss", "accuracy")]
    found += [_amount_differs(measured, arm, twins, column) for column in _EXACT]
    checks = dict.fromkeys(column for found in _tolerances(measured, twins) for column in found)
    found += [_check_differs(measured, arm, twins, column) for column in checks if column in measured.table]
    own = set(measured.facts[arm.name].work)
    other = {digest for twin in twins for digest in measured.facts[twin].work}
    if other and own != other:
        found.append("workload digest differs")
    return tuple(text for text in found if text)

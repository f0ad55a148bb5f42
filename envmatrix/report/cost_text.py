"""Words for the costs of environments: the cells of a table, and the sentence below the answer."""

from __future__ import annotations

from collections.abc import Sequence

from envmatrix.report.formatting import NONE
from envmatrix.stats.cost import Cost
from envmatrix.stats.metrics import show_rate

_DIGITS = 3


def _figure(value: float, digits: int = _DIGITS) -> str:
    """Return a number with all its digits: 0.180, not 0.18."""
    return show_rate(value) if value >= 1000 else f"{value:#.{digits}g}".rstrip(".")


def money_text(cost: Cost | None) -> str:
    """Return the money."""
    return NONE if cost is None or cost.money is None else _figure(cost.money)


def interval_text(cost: Cost | None) -> str:
    """Return the interval of the money, '' without one; a narrow one has enough digits to show its width."""
    if cost is None or cost.low is None or cost.high is None:
        return ""
    ends = ("", "")
    for digits in range(_DIGITS, _DIGITS + 4):
        ends = _figure(cost.low, digits), _figure(cost.high, digits)
        if ends[0] != ends[1]:
            break
    return " to ".join(ends)


def energy_text(cost: Cost | None) -> str:
    """Return the energy in joules, or that it is not readable."""
    return "not readable" if cost is None or cost.energy_j is None else _figure(cost.energy_j)


def cost_note(costs: Sequence[Cost]) -> str:
    """Return what the costs of a table are for; '' without costs."""
    if not costs:
        return ""
    cost = next((cost for cost in costs if cost.energy_j is not None), costs[0])
    interval = ", with the interval of the speed-up" if any(cost.low is not None for cost in costs) else ""
    energy = (
        "not readable" if cost.energy_j is None else f"per {cost.energy_per}, of all {' and '.join(cost.energy_of)}"
    )
    return f"Cost: per {cost.per}, at {cost.price_per_h:g} per hour{interval}. Energy: {energy}."

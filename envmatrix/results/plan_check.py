"""Lines of trials.jsonl held against the plan: each is a trial that the plan has, and stands there once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from envmatrix.errors import StoreError, Where
from envmatrix.plan import Arm, Plan, trial_name
from envmatrix.results.trial import TrialFacts

Line = TypeVar("Line", bound=TrialFacts)


@dataclass(frozen=True)
class RejectedLine:
    """A line that is no trial of the plan, or one a second time: ``reason`` says which."""

    number: int
    reason: str


#: What is done with a line that must not count.
RejectLine = Callable[[RejectedLine], None]


class _Expected:
    """The trials of a plan, each to be met once; a block's order is found when a line of it is met."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._orders: dict[int, list[Arm]] = {}
        self._met: dict[str, int] = {}

    def rejection_reason(self, trial: TrialFacts, number: int) -> str:
        """Say why line ``number`` must not count, '' when it may."""
        if not 0 <= trial.block < self._plan.max_blocks:
            return f"block {trial.block} is not in the plan, which has {self._plan.max_blocks} blocks"
        order = self._order(trial.block)
        if not 0 <= trial.position < len(order):
            return f"position {trial.position} is not in the plan: a block has {len(order)} positions"
        name = trial_name(trial.block, trial.position)
        if trial.trial != name:
            return f"the plan has {name} at position {trial.position} of block {trial.block}, not {trial.trial!r}"
        arm = order[trial.position]
        if (arm.environment, arm.workload, arm.engine) != (trial.environment, trial.workload, trial.engine):
            return f"the plan has {arm.name} for {name}, not {trial.arm}"
        first_line = self._met.setdefault(name, number)
        return "" if first_line == number else f"{name} is already in line {first_line}"

    def _order(self, index: int) -> list[Arm]:
        order = self._orders.get(index)
        if order is None:
            order = self._orders[index] = self._plan.order(index)
        return order


def planned_lines(plan: Plan, lines: Iterable[Line], refuse: RejectLine) -> Iterator[Line]:
    """Yield the trials of ``lines``, the first of which is line 1, that the plan has; the others go to ``refuse``."""
    expected = _Expected(plan)
    for number, trial in enumerate(lines, 1):
        reason = expected.rejection_reason(trial, number)
        if reason:
            refuse(RejectedLine(number, reason))
        else:
            yield trial


def raise_on_rejected(file: Path) -> RejectLine:
    """Return what raises a StoreError for the first line that must not count."""

    def refuse(misfit: RejectedLine) -> None:
        raise StoreError(
            f"this line is not a trial of this run: {misfit.reason}",
            where=Where(file, misfit.number, 1),
            remedy="restore the file from a copy, or run `envmatrix resume`, which sets such lines aside",
        )

    return refuse

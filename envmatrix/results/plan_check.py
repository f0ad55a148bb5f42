"""Checks of trials.jsonl against the plan: each line is a planned trial, and none appears twice."""

from __future__ import annotations

from array import array
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
    """A line of trials.jsonl that is not in the plan or is a duplicate; ``reason`` is the message."""

    number: int
    reason: str


#: Handler for a rejected line.
RejectLine = Callable[[RejectedLine], None]


class _Expected:
    """The trials of a plan, each expected once; the order of a block is computed at its first line."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._blocks: dict[int, tuple[list[Arm], array[int]]] = {}

    def rejection_reason(self, trial: TrialFacts, number: int) -> str:
        """Return why line ``number`` must not count, or '' if it may."""
        if not 0 <= trial.block < self._plan.max_blocks:
            return f"block {trial.block} is not in the plan, which has {self._plan.max_blocks} blocks"
        order, met = self._blocks.get(trial.block) or self._add_block(trial.block)
        if not 0 <= trial.position < len(order):
            return f"position {trial.position} is not in the plan: a block has {len(order)} positions"
        name = trial_name(trial.block, trial.position)
        if trial.trial != name:
            return f"the plan has {name} at position {trial.position} of block {trial.block}, not {trial.trial!r}"
        arm = order[trial.position]
        if (arm.environment, arm.workload, arm.engine) != (trial.environment, trial.workload, trial.engine):
            return f"the plan has {arm.name} for {name}, not {trial.arm}"
        if met[trial.position]:
            return f"{name} is already in line {met[trial.position]}"
        met[trial.position] = number
        return ""

    def _add_block(self, index: int) -> tuple[list[Arm], array[int]]:
        """Return the arms of a block in their order, and the line of each (0: not met yet)."""
        order = self._plan.order(index)
        block = self._blocks[index] = order, array("q", bytes(8 * len(order)))
        return block


def planned_lines(plan: Plan, lines: Iterable[Line], refuse: RejectLine) -> Iterator[Line]:
    """Yield the trials of ``lines`` that are in the plan, and pass the others to ``refuse``; the first is line 1."""
    expected = _Expected(plan)
    for number, trial in enumerate(lines, 1):
        reason = expected.rejection_reason(trial, number)
        if reason:
            refuse(RejectedLine(number, reason))
        else:
            yield trial


def raise_on_rejected(file: Path) -> RejectLine:
    """Return a handler that raises StoreError for the first rejected line of ``file``."""

    def refuse(misfit: RejectedLine) -> None:
        raise StoreError(
            f"this line is not a trial of this run: {misfit.reason}",
            where=Where(file, misfit.number, 1),
            remedy="restore the file from a copy, or run `envmatrix resume`, which sets such lines aside",
        )

    return refuse

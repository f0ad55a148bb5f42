"""Checks of trials.jsonl against the plan: each line is a planned trial, and none appears twice."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def planned_lines(plan: Plan, lines: Iterable[Line], refuse: RejectLine) -> Iterator[Line]:
    """Yield the trials of ``lines`` that are in the plan, and pass the others to ``refuse``; the first is line 1."""
    blocks: dict[int, tuple[list[Arm], array[int]]] = {}  # the arms of a block in their order, and the line of each
    for number, trial in enumerate(lines, 1):
        block = blocks.get(trial.block)
        if block is None and 0 <= trial.block < plan.max_blocks:
            order = plan.order(trial.block)
            block = blocks[trial.block] = order, array("q", bytes(8 * len(order)))
        if block is None:
            reason = f"block {trial.block} is not in the plan, which has {plan.max_blocks} blocks"
        elif not (reason := _rejection_reason(trial, *block)):
            block[1][trial.position] = number
            yield trial
            continue
        refuse(RejectedLine(number, reason))


def _rejection_reason(trial: TrialFacts, order: Sequence[Arm], seen_lines: Sequence[int]) -> str:
    """Return why a trial of a block must not count, or '' if it may; ``seen_lines`` are 0 if not seen yet."""
    if not 0 <= trial.position < len(order):
        return f"position {trial.position} is not in the plan: a block has {len(order)} positions"
    name = trial_name(trial.block, trial.position)
    if trial.trial != name:
        return f"the plan has {name} at position {trial.position} of block {trial.block}, not {trial.trial!r}"
    arm = order[trial.position]
    if (arm.environment, arm.workload, arm.engine) != (trial.environment, trial.workload, trial.engine):
        return f"the plan has {arm.name} for {name}, not {trial.arm}"
    line = seen_lines[trial.position]
    return f"{name} is already in line {line}" if line else ""


def raise_on_rejected(file: Path) -> RejectLine:
    """Return a handler that raises StoreError for the first rejected line of ``file``."""

    def refuse(misfit: RejectedLine) -> None:
        raise StoreError(
            f"this line is not a trial of this run: {misfit.reason}",
            where=Where(file, misfit.number, 1),
            remedy="restore the file from a copy, or run `envmatrix resume`, which sets such lines aside",
        )

    return refuse

"""The interface of a step (training, inference or one exchange), as the timed loop uses it."""

from __future__ import annotations

from typing import Callable, Protocol

from torch import Tensor

from bench.tensors import Batch

#: Called with each phase of a step when it has ended.
Mark = Callable[[str], None]


def no_mark(_phase: str) -> None:
    """Do nothing: timed steps do not record phases."""


class Step(Protocol):
    """One step on a batch; returns this process's loss or None. The mean over all processes is the batch's loss.

    A step ends with a call of ``Device.step_done``.
    """

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> Tensor | None:
        """Run the step; ``mark`` is called with each phase that ended."""

"""What a step is: train, predict or exchange once. The timed loop takes steps and knows nothing else of them."""

from __future__ import annotations

from typing import Callable, Protocol

from torch import Tensor

from bench.tensors import Batch

#: Is told the phase of a step that just ended.
Mark = Callable[[str], None]


def no_mark(_phase: str) -> None:
    """Mark nothing: the phases of a timed step are not taken."""


class Step(Protocol):
    """One step on a batch; returns this process's loss, whose mean over all processes is the batch's, or None.

    It ends with the device told so (``Device.step_done``).
    """

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> Tensor | None:
        """Take the step; ``mark`` is told each phase that ended."""

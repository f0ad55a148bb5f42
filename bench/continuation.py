"""Steps after a trial: its process goes on in stretches for some seconds of steps (docs/record.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.gate import Gate
from bench.place import Place
from bench.second_half import second_half
from bench.tensors import Batch
from bench.timing import Length, Loop

#: The last stretch may be this share of the time too short: a further stretch of a few steps would tell nothing.
_REST = 0.05


class LaterSteps(Loop):
    """Yields batches for ``seconds`` of steps, after steps of ``ran_ns`` in the trial.

    ``step_ns`` is the mean time of a step of the trial. The length of each stretch comes from the gate.
    """

    def __init__(
        self, source: Iterator[Batch], place: Place, gate: Gate, seconds: float, ran_ns: int, step_ns: float
    ) -> None:
        super().__init__(source, place, Length(checked=0, warm_up=0, timed=0, epoch=0), gate)
        self._stop_line, self._after_ns, self._length_ns = gate, ran_ns, round(1e9 * seconds)
        self._step_ns = self._trial_step_ns = step_ns

    def __iter__(self) -> Iterator[Batch]:
        while steps_left := self._steps_left():
            yield from self._turn(self._stop_line.turn(steps_left))
            stretch = self._stretches[-1]
            self._step_ns = stretch.total_ns / len(stretch.steps_ns)
        self._stop_line.end()

    def _steps_left(self) -> int:
        """Return how many steps remain if they are as fast as those of the last stretch."""
        left_ns = self._length_ns - self.ran_ns
        return -int(-left_ns // self._step_ns) if left_ns > _REST * self._length_ns else 0

    def times(self) -> dict[str, Any]:
        """Return the times of all its steps, and of those before them, in the record's form."""
        stretches = [
            {"apart_ns": list(turn.apart_ns), "counted_ns": list(stretch.steps_ns)}
            for turn, stretch in zip(self._turns, self._stretches)
        ]
        means = second_half(self._parts(), self._trial_step_ns, self._after_ns)
        return {**means, "after_ns": self._after_ns, "stretches": stretches}

"""The gate at which interleaved processes wait for their turns (docs/record.md): two named pipes in a folder.

The process writes ``ready LEFT``, its number of remaining timed steps, and waits. The answer is ``go APART COUNTED``, a
turn of that many steps, or ``end``. After ``end MILLISECONDS`` it writes its record, and then asks for turns again,
for that long in steps. None of its timers run while it waits, so it may be stopped for any time.
"""

from __future__ import annotations

import os
from typing import Callable, NamedTuple

from bench.errors import BenchError, RunError

#: Names of the pipes in the gate's folder: the one the process writes to, and the one it reads from.
READY, GO = "ready", "go"


class Turn(NamedTuple):
    """A turn: ``apart`` steps that do not count, as another process's data is in the caches, then ``counted`` ones."""

    apart: int
    counted: int


class Gate:
    """The process's side of the gate; ``before_reading`` may wait until a file descriptor is readable."""

    def __init__(self, folder: str, before_reading: Callable[[int], object] = lambda _: None) -> None:
        self._before_reading = before_reading
        try:
            # The other side has both ends open already, so neither call blocks. They stay open until exit.
            self._told = open(os.path.join(folder, READY), "w", encoding="ascii")  # noqa: SIM115
            self._heard = open(os.path.join(folder, GO), encoding="ascii")  # noqa: SIM115
        except OSError as error:
            raise BenchError(f"--gate: {folder} is no gate: {error.strerror}") from error

    def turn(self, steps_left: int) -> Turn:
        """Wait for the next turn; ``left`` is the number of steps that remain."""
        answer = self._ask(steps_left)
        numbers = answer[1:]
        if answer[:1] != ["go"] or len(numbers) != 2 or not all(text.isdecimal() for text in numbers):
            raise RunError(f"expected a turn from the gate, got {' '.join(answer)!r}")
        turn = Turn(int(numbers[0]), int(numbers[1]))
        if not turn.counted:
            raise RunError("the gate gave a turn without a step")
        return Turn(turn.apart, min(turn.counted, steps_left))

    def end(self) -> float | None:
        """Wait until all processes have had their turns, because later work would disturb them.

        Return for how many seconds of steps the process goes on, or None if it ends.
        """
        answer = self._ask(0)
        if answer[:1] != ["end"] or not all(text.isdecimal() for text in answer[1:]):
            raise RunError("the gate gave a turn, and no step is left")
        return int(answer[1]) / 1000 if len(answer) > 1 else None

    def _ask(self, steps_left: int) -> list[str]:
        self._told.write(f"ready {steps_left}\n")
        self._told.flush()
        self._before_reading(self._heard.fileno())
        answer = self._heard.readline()
        if not answer.endswith("\n"):
            raise RunError("whoever gave turns is gone")
        return answer.split()

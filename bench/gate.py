"""The gate that a process of several waits at for its turn (docs/record.md): two named pipes in one folder.

The process writes ``ready LEFT``, how many timed steps it has still to take, and waits. It is answered ``go APART
COUNTED``, a turn of so many steps, or ``end``. Nothing of its clocks runs meanwhile: it may be stopped for any time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable

from bench.errors import BenchError, RunError

#: The pipes' names in the gate's folder: what the process writes to, and what it reads.
READY, GO = "ready", "go"


@dataclass(frozen=True)
class Turn:
    """``apart`` steps whose times are set apart (the caches are another process's), then ``counted`` ones."""

    apart: int
    counted: int


class Gate:
    """This process's end of the gate; ``before_reading`` may wait until an answer can be read from a file handle."""

    def __init__(self, folder: str, before_reading: Callable[[int], object] = lambda _: None) -> None:
        self._before_reading = before_reading
        try:
            # Its other end is open already, for reading and writing: neither line waits. They stay open to the end.
            self._told = open(os.path.join(folder, READY), "w", encoding="ascii")  # noqa: SIM115
            self._heard = open(os.path.join(folder, GO), encoding="ascii")  # noqa: SIM115
        except OSError as error:
            raise BenchError(f"--gate: {folder} is no gate: {error.strerror}") from error

    def turn(self, left: int) -> Turn:
        """Wait for the next turn of a process that has ``left`` steps to take."""
        answer = self._ask(left)
        numbers = answer[1:]
        if answer[:1] != ["go"] or len(numbers) != 2 or not all(text.isdecimal() for text in numbers):
            raise RunError(f"the gate said {' '.join(answer)!r} where a turn was due")
        turn = Turn(int(numbers[0]), int(numbers[1]))
        if not turn.counted:
            raise RunError("the gate gave a turn without a step")
        return Turn(turn.apart, min(turn.counted, left))

    def end(self) -> None:
        """Wait until all processes have had their turns: what follows would disturb them."""
        if self._ask(0) != ["end"]:
            raise RunError("the gate gave a turn, and no step is left")

    def _ask(self, left: int) -> list[str]:
        self._told.write(f"ready {left}\n")
        self._told.flush()
        self._before_reading(self._heard.fileno())
        answer = self._heard.readline()
        if not answer.endswith("\n"):
            raise RunError("whoever gave turns is gone")
        return answer.split()

"""The gate at which interleaved processes wait for their turns (docs/record.md): two named pipes in a folder.

The process writes ``ready LEFT``, its number of remaining timed steps, and waits. The answer is ``go APART COUNTED``, a
turn of that many steps, or ``end``. After ``end MILLISECONDS`` it writes its record, and then asks for turns again,
for that long in steps. None of its timers run while it waits, so it may be stopped for any time.
"""

from __future__ import annotations

import os
import re
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
        match = re.fullmatch(r"go (\d+) (\d+)", answer)
        if not match:
            raise RunError(f"expected a turn from the gate, got {answer!r}")
        apart, counted = int(match[1]), int(match[2])
        if not counted:
            raise RunError("the gate gave a turn without a step")
        return Turn(apart, min(counted, steps_left))

    def wait_for_extra_seconds(self) -> float | None:
        """Wait until all processes have had their turns, because later work would disturb them.

        Return for how many seconds of steps the process goes on, or None if it ends.
        """
        match = re.fullmatch(r"end(?: (\d+))?", self._ask(0))
        if not match:
            raise RunError("the gate gave a turn, and no step is left")
        return int(match[1]) / 1000 if match[1] else None

    def _ask(self, steps_left: int) -> str:
        self._told.write(f"ready {steps_left}\n")
        self._told.flush()
        self._before_reading(self._heard.fileno())
        answer = self._heard.readline()
        if not answer.endswith("\n"):
            raise RunError("whoever gave turns is gone")
        return answer.strip()

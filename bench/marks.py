"""Steps that the user's own program tells of: each line of its output that matches says that one has ended."""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from bench.errors import BenchError, RunError

#: What share of the lines may come together with another one: the program keeps its output back then.
_TOGETHER = 0.1


class _Turn(NamedTuple):
    """A part of the run: it began then, after ``first`` marks; so many steps are set apart, and then so many count."""

    began_ns: int
    first: int
    apart: int
    counted: int | None


class Marks:
    """When the program's steps ended, by the clock of who reads its output. ``warmup`` steps come before any counts.

    Lines are looked at by one thread; another may wait for ``fileno``, which can be read once a turn has had its steps.
    """

    def __init__(self, pattern: str, warmup: int) -> None:
        try:
            self._pattern = re.compile(pattern, re.MULTILINE)
        except re.error as error:
            raise BenchError(f"--metric-steps {pattern!r} is no regular expression: {error}") from error
        if warmup < 1:
            raise BenchError(f"--metric-warmup {warmup}: 1 or more, as the first step's time is that of the start too")
        self.warmup = warmup
        self._ends_ns: list[int] = []
        self._late = 0
        self._turns: list[_Turn] = []
        self._wanted: int | None = None
        self._had, self._tell = os.pipe()

    def fileno(self) -> int:
        """Return what can be read when a turn has had its steps."""
        return self._had

    def look(self, lines: str) -> None:
        """Look at some whole lines of output, which have just come."""
        found = sum(1 for _ in self._pattern.finditer(lines))
        if not found:
            return
        self._late += found - 1
        self._ends_ns += [time.perf_counter_ns()] * found
        if self._wanted is not None and len(self._ends_ns) >= self._wanted:
            self._wanted = None
            os.write(self._tell, b"!")

    def begin(self, began_ns: int, apart: int, counted: int | None = None) -> None:
        """Begin a turn of ``counted`` steps after those that are set apart; None: all that come."""
        first = len(self._ends_ns)
        self._turns.append(_Turn(began_ns, first, apart, counted))
        self._wanted = None if counted is None else first + apart + counted

    def had(self) -> None:
        """Take note that a turn has had its steps."""
        os.read(self._had, 1)

    def turns(self) -> list[tuple[list[int], list[int]]]:
        """Return the times (ns) of each turn's steps: those set apart, and those that count. Raises RunError."""
        seen = len(self._ends_ns)
        if self._late > _TOGETHER * seen:
            raise RunError(
                f"{self._late} of {seen} lines that end a step came together with another one: "
                "the program must hand each line over at once, as print(..., flush=True) does"
            )
        ends = [turn.first for turn in self._turns[1:]] + [seen]
        return [self._of(turn, last) for turn, last in zip(self._turns, ends)]

    def _of(self, turn: _Turn, last: int) -> tuple[list[int], list[int]]:
        ends = self._ends_ns[turn.first : last]
        times = [end - before for before, end in zip([turn.began_ns, *ends], ends)]
        until = None if turn.counted is None else turn.apart + turn.counted
        return times[: turn.apart], times[turn.apart : until]

    def steps_ns(self) -> list[int]:
        """Return the times of the steps that count; raises RunError where there are none."""
        found = [step for _, counted in self.turns() for step in counted]
        if not found:
            told = f"{self._pattern.pattern!r} matched {len(self._ends_ns)} lines of its output"
            raise RunError(f"metric not found: {told}, and none counts before {self.warmup + 1} of them came in a row")
        return found

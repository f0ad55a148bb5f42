"""Step times of the user's own program: each matching line of its output marks the end of a step."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.errors import BenchError, RunError

#: If this share of the lines was written together with others, the program buffers its output.
_TOGETHER = 0.5


class _End(NamedTuple):
    """The end of a step: when its line was read, and whether it was the ``last`` one in that read.

    When earlier lines of the read were written is unknown. ``held``: the program may have waited for room in the pipe.
    """

    at_ns: int
    last: bool
    held: bool


class _Turn(NamedTuple):
    """A part of the run: it began after ``first`` marks, with ``apart`` steps set apart and then ``counted`` ones."""

    began_ns: int
    first: int
    apart: int
    counted: int | None


class Marks:
    """The ends of a program's steps, by its reader's clock. ``warmup`` steps come before the first that counts.

    If the reader was late, steps whose lines it found together get their mean time (``averaged`` of them). If even that
    is unknown, steps do not count (``dropped`` of them). One thread calls ``look``. Another may wait on ``fileno``,
    which becomes readable when a turn's steps are done.
    """

    def __init__(self, pattern: str, warmup: int) -> None:
        try:
            self._pattern = re.compile(pattern, re.MULTILINE)
        except re.error as error:
            raise BenchError(f"--metric-steps {pattern!r} is no regular expression: {error}") from error
        if warmup < 1:
            raise BenchError(f"--metric-warmup {warmup}: 1 or more, as the first step's time is that of the start too")
        self.warmup = warmup
        self._ends: list[_End] = []
        self._together = 0
        self.averaged = self.dropped = 0
        self._turns: list[_Turn] = []
        self._wanted: int | None = None
        self._had, self._tell = os.pipe()

    def turn_done_fileno(self) -> int:
        """Return a file descriptor that is readable when a turn's steps are done."""
        return self._had

    def look(self, writes: Sequence[str], at_ns: int, full: bool) -> None:
        """Find marks in the whole lines of each write, all read at ``at_ns``; ``full``: the program may have waited."""
        counts = [count for count in (sum(1 for _ in self._pattern.finditer(lines)) for lines in writes) if count]
        total = sum(counts)
        if not total:
            return
        self._together += total - len(counts)
        self._ends += [_End(at_ns, number == total, full) for number in range(1, total + 1)]
        if self._wanted is not None and len(self._ends) >= self._wanted:
            self._wanted = None
            os.write(self._tell, b"!")

    def begin(self, began_ns: int, apart: int, counted: int | None = None) -> None:
        """Begin a turn of ``counted`` steps after ``apart`` steps that do not count; None means all remaining steps."""
        first = len(self._ends)
        self._turns.append(_Turn(began_ns, first, apart, counted))
        self._wanted = None if counted is None else first + apart + counted

    def clear_turn_done(self) -> None:
        """Clear the signal that a turn's steps are done."""
        os.read(self._had, 1)

    def step_times_by_turn(self) -> list[tuple[list[int], list[int]]]:
        """Return each turn's step times in ns as (set apart, counted). Raises RunError if the output is buffered."""
        end_count = len(self._ends)
        if self._together and self._together >= _TOGETHER * (end_count - 1):
            raise RunError(
                f"{self._together} of {end_count} lines that end a step came together with another one: "
                "the program must hand each line over at once, as print(..., flush=True) does"
            )
        self.averaged = self.dropped = 0
        ends = [turn.first for turn in self._turns[1:]] + [end_count]
        return [self._turn_times(turn, stop) for turn, stop in zip(self._turns, ends)]

    def _turn_times(self, turn: _Turn, last: int) -> tuple[list[int], list[int]]:
        until = last if turn.counted is None else turn.apart + turn.counted
        apart: list[int] = []
        counted: list[int] = []
        index = 0
        for times, held_up in _steps_read_at_once(turn.began_ns, self._ends[turn.first : last]):
            cold, warm = times[: max(0, turn.apart - index)], times[max(0, turn.apart - index) : max(0, until - index)]
            index += len(times)
            apart += cold
            if warm and (cold or held_up):
                self.dropped += len(warm)
                continue
            counted += warm
            self.averaged += len(warm) if len(times) > 1 else 0
        return apart, counted

    def counted_steps_ns(self) -> list[int]:
        """Return the times of the steps that count; raises RunError if there are none."""
        steps = [step for _, counted in self.step_times_by_turn() for step in counted]
        if steps:
            return steps
        if self.dropped:
            raise RunError(
                f"its output was read too late to time one of {self.dropped} steps: "
                "end other programs on this machine, or let the program print every tenth step"
            )
        matched_text = f"{self._pattern.pattern!r} matched {len(self._ends)} lines of its output"
        raise RunError(
            f"metric not found: {matched_text}, and none counts before {self.warmup + 1} of them came in a row"
        )


def _steps_read_at_once(began_ns: int, ends: Sequence[_End]) -> Iterator[tuple[list[int], bool]]:
    """Yield (times in ns, held up) for steps whose ends were read at once; each step gets the mean time.

    A line that waited for room is only read next time, so the following steps count as held up too.
    """
    group_size, held_up = 0, False
    for end in ends:
        group_size += 1
        if end.last:
            elapsed_ns = max(0, end.at_ns - began_ns)
            times = [
                elapsed_ns * (number + 1) // group_size - elapsed_ns * number // group_size
                for number in range(group_size)
            ]
            yield times, end.held or held_up
            began_ns, group_size, held_up = max(began_ns, end.at_ns), 0, end.held

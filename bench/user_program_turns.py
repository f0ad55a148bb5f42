"""Interleaving of the user's own program: it runs during its turns, and all its processes are stopped otherwise."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from bench import process_resource_usage
from bench.errors import RunError
from bench.evidence import proc_files
from bench.evidence.reading import attempt
from bench.gate import Gate, Turn
from bench.step_times_from_output import Marks

#: The unit of a turn's length, in seconds.
PART_S = 0.1
#: The number of turns that the program needs is unknown, so it reports the largest number.
_UNKNOWN = 999_999_999
_ROUNDS = 100
#: Seconds that a process gets to stop (it may be in the kernel, waiting for a disk), and between checks of its state.
_STOPPED_S, _LOOK_S = 120.0, 0.001
#: States in which a process does not run: stopped, traced, ended, gone.
_STANDING = ("T", "t", "Z", "X", "")


class Turns:
    """The turns of one program. ``paused_ns`` is the total time between them.

    ``wait`` (file descriptors, seconds) returns whether one of them became readable in time; it may raise.
    """

    def __init__(self, folder: str, wait: Callable[[Sequence[int], float | None], bool]) -> None:
        if not hasattr(os, "pidfd_open"):
            raise RunError("turns of a program need Python 3.9 and Linux 5.3")
        self._wait = wait
        self._gate = Gate(folder, lambda file: wait([file], None))
        self.paused_ns = 0
        self._length_s = 0.0
        self._loads: list[tuple[float, ...]] = []

    def begin(self) -> None:
        """Wait for the first turn, in which the program starts."""
        self._take(self._gate.turn(_UNKNOWN))

    def run(self, process: subprocess.Popen[bytes], start_ns: int) -> int:
        """Run a started program in its turns until it ends; return the nanoseconds that it ran.

        All of its processes stop and continue together.
        """
        file = os.pidfd_open(process.pid)
        ran_ns, began_ns, load_before = 0, start_ns, (0.0, 0.0)
        try:
            while True:
                if self._ended(file, began_ns):
                    return ran_ns + time.perf_counter_ns() - began_ns
                _stop()
                stopped_ns = time.perf_counter_ns()
                ran_ns += stopped_ns - began_ns
                if self.paused_ns:  # not in the first turn: it includes start-up, maybe next to others
                    load_after = _contention()
                    self._loads.append(
                        (stopped_ns - began_ns, load_after[0] - load_before[0], load_after[1] - load_before[1])
                    )
                self._take(self._gate.turn(_UNKNOWN))
                load_before = _contention()
                began_ns = time.perf_counter_ns()
                self.paused_ns += began_ns - stopped_ns
                self._begins(began_ns)
                _signal(_below(), signal.SIGCONT)
        finally:
            os.close(file)

    def contention_seconds(self, wall_ns: int) -> dict[str, float]:
        """Return others' CPU time and its threads' CPU waits in complete turns, extrapolated to all its run time."""
        if not self._loads:
            return {}
        seen_ns, *sums = (sum(part) for part in zip(*self._loads))
        shares = zip(("others_s", "run_delay_s"), sums)
        return {name: max(0.0, value) * wall_ns / seen_ns for name, value in shares if not math.isnan(value)}

    def wait_for_extra_seconds(self) -> None:
        """Wait until all others have had their turns, because later work would disturb them."""
        self._gate.wait_for_extra_seconds()

    def _take(self, turn: Turn) -> None:
        self._length_s = PART_S * turn.counted

    def _begins(self, began_ns: int) -> None:
        """Note that a turn begins."""

    def _ended(self, file: int, began_ns: int) -> bool:
        """Wait for the end of the turn or of the program; return whether the program has ended."""
        left_s = self._length_s - (time.perf_counter_ns() - began_ns) / 1e9
        return self._wait([file], max(0.0, left_s))


class StepTurns(Turns):
    """The turns of a program that prints its steps: it starts next to others, and is stopped after its first step."""

    def __init__(self, folder: str, wait: Callable[[Sequence[int], float | None], bool], marks: Marks) -> None:
        super().__init__(folder, wait)
        self._marks = marks
        self._given = Turn(1, 0)  # start-up and the first step, which do not count
        self._cold = marks.warmup - 1

    def begin(self) -> None:
        """Start at once."""
        self._begins(time.perf_counter_ns())

    def step_times_by_turn(self) -> list[tuple[list[int], list[int]]]:
        """Return each turn's step times in ns as (set apart, counted)."""
        return self._marks.step_times_by_turn()[1:]

    def _take(self, turn: Turn) -> None:
        self._given = Turn(max(turn.apart, self._cold), turn.counted)
        self._cold = 0

    def _begins(self, began_ns: int) -> None:
        self._marks.begin(began_ns, self._given.apart, self._given.counted)

    def _ended(self, file: int, began_ns: int) -> bool:
        self._wait([file, self._marks.turn_done_fileno()], None)
        if select.select([file], [], [], 0)[0]:
            return True
        self._marks.clear_turn_done()
        return False


def _contention() -> tuple[float, float]:
    """Return the CPU seconds of others so far, and the seconds that the program's threads waited for a CPU."""
    others_s = attempt(process_resource_usage.others_s)
    return math.nan if others_s is None else others_s, proc_files.waited_s(_below())


def _below() -> set[int]:
    """Return all descendants of this process, which is a subreaper."""
    return set(proc_files.descendants(os.getpid()))


def _stop() -> None:
    """Stop all processes, including those that start meanwhile, and wait until they are stopped."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        not_stopped = _below() - stopped
        if not not_stopped:
            break
        _signal(not_stopped, signal.SIGSTOP)
        stopped |= not_stopped
    else:
        raise RunError("the program starts processes faster than they can be stopped between its turns")
    deadline = time.monotonic() + _STOPPED_S
    while runs := {pid: proc_files.state(pid) for pid in stopped if not _stands(pid)}:
        if time.monotonic() > deadline:
            raise RunError(f"processes of the program do not stop between its turns (pid: state): {runs}")
        time.sleep(_LOOK_S)


def _stands(pid: int) -> bool:
    """Return whether a process does not run: it is stopped, or waits in the kernel for a stopped child.

    vfork(2), used by Python's subprocess and posix_spawn(3), returns to the parent only after the child's exec. If the
    child was stopped before, the parent stops when vfork returns.
    """
    state, children = proc_files.state(pid), proc_files.children(pid)
    return state in _STANDING or (state == "D" and any(proc_files.state(child) in ("T", "t") for child in children))


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

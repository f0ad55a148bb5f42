"""Interleaving of processes: one runs its turn while all others are stopped (docs/interleaving.md)."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Protocol

from envmatrix.block import interrupts
from envmatrix.block.process import Exit
from envmatrix.block.turn_gate import Gate, GateError

#: The length of a process's next turn (untimed steps, timed steps), given how many turns it has had.
TurnLengths = Callable[[int], tuple[int, int]]
#: Seconds of a stretch of steps after the trials.
STRETCH_S = 1.0


class Running(Protocol):
    """A started process with all its descendants, which can be paused.

    It becomes readable when it ends. A supervisor implements this for a program, an engine's service for a container.
    """

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when it ends."""

    def hold(self) -> None:
        """Stop all its processes; when this returns none of them is running, even if a thread spins."""

    def release(self) -> None:
        """Resume all its processes."""

    def end(self) -> None:
        """Start ending it without waiting, so that several jobs can end at the same time."""

    def exit(self) -> Exit:
        """Wait until it ends, and return its exit."""


@dataclass(frozen=True)
class Schedule:
    """Which processes are alive when: ``kept`` all the time, together with one of the ``batches`` after another.

    ``seed`` and ``block`` determine the order of each round. A turn has ``steps`` steps (0: all steps, in one turn).
    ``limit_s`` limits the sum of a process's turns; ``at_once`` is how many processes get ready at the same time.
    """

    batches: tuple[tuple[str, ...], ...]
    seed: int
    block: int
    steps: int
    limit_s: float
    at_once: int
    kept: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all processes."""
        return (*self.kept, *(name for batch in self.batches for name in batch))


def turn_order(seed: int, block: int, number: int, trials: Iterable[str]) -> list[str]:
    """Return the order of turns in round ``number`` of a block: a new random order in every round.

    Skip failed trials when iterating, rather than leaving them out here: then the order of the others is unchanged.
    """
    names = sorted(trials)
    return random.Random(f"{seed}:{block}:turn {number}").sample(names, len(names))  # noqa: S311 - an order, no secret


def turns_done_after(batch: int, batches: int, turns: int) -> int:
    """Return how many of its ``turns`` a kept process has had after batch number ``batch`` (from 0)."""
    return math.ceil(turns * (batch + 1) / batches)


@dataclass
class Member:
    """One process. ``left`` is the number of timed steps it has left (None: it has not reached its gate).

    ``due`` is the deadline for reaching its gate, by the monotonic clock.
    ``pauses_itself``: the process at the gate pauses the measured program by itself, and is not stopped.
    ``apart``: number of untimed steps at the start of each turn. ``on_end`` is called when it has ended by itself.
    ``later_s``: the seconds that it went on after its trial (None: it did not).
    """

    name: str
    running: Running
    gate: Gate
    pauses_itself: bool = False
    apart: int = 1
    on_end: Callable[[], None] = lambda: None
    due: float = 0.0
    left: int | None = None
    ran_s: float = 0.0
    turns: int = 0
    timed_out: bool = False
    over: bool = False
    later_s: float | None = None

    def is_at_gate_or_ended(self, ready: Sequence[object]) -> bool:
        """Read a message or the exit of the process; return whether it waits at its gate or has ended."""
        try:
            self.left = self.gate.remaining_steps() if self.gate in ready else None
        except GateError:
            self.running.end()  # its log or its exit status shows the cause
            self.over = True
        if self.running in ready and not self.over:
            self.over = True
            self.on_end()
        return self.over or self.left is not None

    def hold(self) -> None:
        """Stop the process at its gate."""
        if not self.over and not self.pauses_itself:
            self.running.hold()

    def release(self) -> None:
        """Resume the process."""
        if not self.pauses_itself:
            self.running.release()

    def time_out(self) -> None:
        """Start ending the process because its time is up."""
        self.timed_out = self.over = True
        self.running.end()

    def wait_until_ended(self, together: int) -> Ended:
        """Wait until it ends, and return how; a trial that was complete before its process went on stays successful."""
        exit_status = replaced(self.running.exit(), timed_out=self.timed_out)
        if self.later_s is None:
            return Ended(exit_status, together)
        wall_s = max(0.0, exit_status.wall_s - self.later_s)
        failure = "" if exit_status.ok else str(exit_status)
        return Ended(Exit(0, wall_s, stops=exit_status.stops), together, self.later_s, failure)


@dataclass(frozen=True)
class Ended:
    """How an interleaved process ended; ``together``: the most processes that were alive with it, including itself.

    ``later_s``: the seconds that it went on after its trial (None: it did not); ``later_failed``: why it did not go on
    to the end.
    """

    exit: Exit
    together: int
    later_s: float | None = None
    later_failed: str = ""


#: Starts a process by its name and registers its end with the stack; None if it cannot be started.
Start = Callable[[str, ExitStack], "Member | None"]


class BrokenOffError(Exception):
    """The wait was aborted (a job was suspended)."""


@dataclass
class Interleaving:
    """Runs the batches of a schedule and their rounds; if ``stop`` becomes readable, everything is aborted.

    ``later_s``: processes of a single batch go on after their trials, each for so many seconds of steps.
    """

    schedule: Schedule
    start: Start
    lengths: TurnLengths | None = None
    stop: interrupts.Readable | None = None
    later_s: float | None = None
    round: int = field(default=0, init=False)

    def run(self) -> dict[str, Ended]:
        """Run all batches, and the kept processes through all of them, until all have ended."""
        kept: list[Member] = []
        ends: dict[str, Ended] = {}
        with ExitStack() as stack, _end_all_on_error(kept):
            self._start_all(self.schedule.kept, stack, kept)
            most_alive = len(kept)
            for number, names in enumerate(self.schedule.batches):
                ends |= (batch_ends := self._run_batch(number, names, kept))
                most_alive = max(most_alive, len(kept) + len(batch_ends))
            return ends | {member.name: member.wait_until_ended(most_alive) for member in kept}

    def _run_batch(self, number: int, names: Sequence[str], kept: Sequence[Member]) -> dict[str, Ended]:
        batch: list[Member] = []
        is_last = number + 1 == len(self.schedule.batches)
        with ExitStack() as stack:
            self._start_all(names, stack, batch)
            alive = [*kept, *batch]
            with _end_all_on_error(alive):
                self._take_turns(alive, number)
                to_finish = alive if is_last else batch
                if self.later_s is not None and not kept and is_last:
                    self._go_on(batch, self.later_s)
                self._finish([member for member in to_finish if not member.over])
                return {member.name: member.wait_until_ended(len(alive)) for member in batch}

    def _start_all(self, names: Sequence[str], stack: ExitStack, members: list[Member]) -> None:
        """Start processes and wait until all are ready; at most ``at_once`` get ready at the same time.

        More would not be faster: each would take longer, and evict the others' data from the caches.
        """
        at_once = min(self.schedule.at_once, len(self.schedule.names))
        with _end_all_on_error(members):
            for name in names:
                self._wait_until_held(_starting_processes(members), most=self.schedule.at_once - 1)
                if member := self.start(name, stack):
                    member.due = time.monotonic() + at_once * self.schedule.limit_s
                    members.append(member)
            self._wait_until_held(_starting_processes(members))

    def _take_turns(self, members: Sequence[Member], batch: int) -> None:
        """Run the turns of all processes.

        A trial's limit applies to the sum of its turns. Getting ready may take that limit times the number of CPUs, as
        one process per CPU gets ready at once. Finishing may take it times the number of processes.
        """
        while order := self._round_order(members, batch):
            for member in order:
                self.take_turn(member)
            self.round += 1

    def _round_order(self, members: Sequence[Member], batch: int) -> list[Member]:
        """Return the processes that have steps left in this batch, in this round's order."""
        members_by_name = {member.name: member for member in members if self._has_turn(member, batch)}
        order = turn_order(self.schedule.seed, self.schedule.block, self.round, self.schedule.names)
        return [members_by_name[name] for name in order if name in members_by_name]

    def _has_turn(self, member: Member, batch: int) -> bool:
        if not member.left or member.over:
            return False
        if member.name not in self.schedule.kept:
            return True
        total_turns = member.turns + -(-member.left // self.schedule.steps)
        return member.turns < turns_done_after(batch, len(self.schedule.batches), total_turns)

    def _turn_length(self, member: Member) -> tuple[int, int]:
        """Return how many steps of a process's next turn are untimed, and how many are timed."""
        if self.lengths:
            return self.lengths(member.turns)
        return (member.apart, self.schedule.steps) if self.schedule.steps else (0, member.left or 0)

    def _go_on(self, members: Sequence[Member], seconds: float) -> None:
        """Let processes complete their trials, and then go on in stretches, each for ``seconds`` of steps."""
        going = [member for member in members if not (member.over or member.pauses_itself)]
        for member in going:
            member.left, member.due = None, time.monotonic() + self.schedule.limit_s * len(members)
            member.gate.end(seconds)
            member.release()
        self._wait_until_held(going)
        going_on = [member for member in going if not member.over]
        began = time.monotonic()
        for member in going_on:
            member.ran_s = member.later_s = 0.0
        stretches = math.ceil(seconds / STRETCH_S) if self.schedule.steps else 1
        for number in itertools.count():
            waiting = {member.name: member for member in going_on if member.left and not member.over}
            for name in turn_order(self.schedule.seed, self.schedule.block, self.round + number, waiting):
                member = waiting[name]
                steps = math.ceil((member.left or 0) / max(1, stretches - number))
                self.take_turn(member, (member.apart if self.schedule.steps else 0, steps))
                member.later_s = time.monotonic() - began
            if not waiting:
                break

    def take_turn(self, member: Member, length: tuple[int, int] | None = None) -> None:
        """Let a process run until it is back at its gate or has ended."""
        member.gate.go(*(length or self._turn_length(member)))
        member.turns += 1
        began = time.monotonic()
        member.due = began + self.schedule.limit_s - member.ran_s
        member.release()
        self._wait_until_held([member])
        member.ran_s += time.monotonic() - began

    def _finish(self, members: Sequence[Member]) -> None:
        """Let processes that have had all turns finish at the same time; end those that exceed the limit."""
        for member in members:
            member.due = time.monotonic() + self.schedule.limit_s * len(self.schedule.names)
            member.gate.end()
        while going := [member for member in members if not member.over]:
            for member in going:
                member.release()
            self._wait_until_held(going)

    def _wait_until_held(self, members: Sequence[Member], most: int = 0) -> None:
        """Wait until all but ``most`` processes are held at their gates or have ended; end those that are late."""
        waiting = list(members)
        while len(waiting) > most:
            due = min(member.due for member in waiting)
            readable = self._readable([file for member in waiting for file in (member.running, member.gate)], due)
            arrived = [member for member in waiting if member.is_at_gate_or_ended(readable)]
            for member in arrived:
                member.hold()
            for member in waiting if not readable else ():
                if member.due <= due:
                    member.time_out()
            waiting = [member for member in waiting if member not in arrived and not member.over]

    def _readable(self, files: Sequence[interrupts.Readable], due: float) -> list[interrupts.Readable]:
        """Wait until ``due`` and return the files that are readable."""
        watched = [*files, self.stop] if self.stop else files
        ready = interrupts.wait_readable(watched, max(0.0, due - time.monotonic()))
        if self.stop in ready:
            raise BrokenOffError
        return ready


def _starting_processes(members: Sequence[Member]) -> list[Member]:
    return [member for member in members if member.left is None and not member.over]


@contextlib.contextmanager
def _end_all_on_error(members: Sequence[Member]) -> Iterator[None]:
    """End all processes at the same time if an error occurs."""
    try:
        yield
    except BaseException:
        for member in members:
            member.running.end()
        raise

"""Every program that a command starts, seen from outside while it runs: what it maps, what it was given, what it costs.

A program is what one ``exec`` started, the children that it forked without another ``exec`` counted to it: they have
its libraries and its variables.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.evidence import memory
from bench.evidence.reading import attempt, fields, text

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Looking may take this much CPU time at the start, and this share of the time from then on.
_FIRST_S, _SHARE = 0.01, 0.002
_SHORTEST_S, _LONGEST_S = 0.005, 0.25
#: How long threads waited is read at ages that grow by this factor: a process may have hundreds of them.
_LATER = 1.3
_GONE = ("0",) * 6
_LIBRARY = re.compile(r"\.so(\.\S+)?$")


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    found = []
    for thread in attempt(lambda: os.listdir(f"/proc/{pid}/task")) or []:
        found += [int(child) for child in (text(f"/proc/{pid}/task/{thread}/children") or "").split()]
    return found


def state(pid: int) -> str:
    """Return the state of a process as proc(5) calls it, '' when it is gone."""
    return "".join((text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()[:1])


@dataclass
class Program:
    """What one ``exec`` started; ``threads`` is the most that one of its processes had at a time.

    ``number`` counts programs in the order in which they were first seen; ``of_process`` is the CPU time of each
    process, ``threads_set`` what those that worked asked of the OpenMP runtime.
    """

    pid: int
    name: str
    number: int = 0
    path: str | None = None
    cpu_s: float = 0.0
    threads: int = 0
    libraries: set[str] | None = None
    variables: dict[str, str] | None = None
    affinities: dict[str, None] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=lambda: {"thp_process": None, "policy": None})
    of_process: dict[int, float] = field(default_factory=dict)
    threads_set: list[int] = field(default_factory=list)
    _first_look: float | None = None
    _next_look: float = 0.0

    def took(self, pid: int, cpu_s: float) -> None:
        """Count CPU time of one of its processes."""
        self.cpu_s += cpu_s
        self.of_process[pid] = self.of_process.get(pid, 0.0) + cpu_s

    def look(self, pid: int, since_s: float) -> None:
        """Read what is mapped, at ages that treble: the lists are long, their lines hardly change.

        It may have been met while its loader was at work, so that the next look is a second one, however late it began.
        """
        if since_s < self._next_look:
            return
        if self._first_look is None:
            self._first_look = since_s
        self._next_look = self._first_look + 3 * (since_s - self._first_look)
        self.path = attempt(lambda: os.readlink(f"/proc/{pid}/exe")) or self.path
        attempt(lambda: self._read_maps(pid))
        affinity = fields(f"/proc/{pid}/status").get("Cpus_allowed_list")
        if affinity:
            self.affinities[affinity] = None
        asked = memory.asked_of(pid)
        self.memory.update({name: value for name, value in asked.items() if value is not None})
        raw = text(f"/proc/{pid}/environ") if not self.variables else None
        if raw is not None:
            self.variables = _variables(raw)

    def _read_maps(self, pid: int) -> None:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            mapped = {line[line.find("/") : -1] for line in file if ".so" in line}
        self.libraries = (self.libraries or set()) | {path for path in mapped if _LIBRARY.search(path)}


def _variables(raw: str) -> dict[str, str]:
    """Return what a program was given. glibc's loader ends each tunable that it reads with a NUL, in place."""
    found: dict[str, str] = {}
    last = ""
    for item in raw.split("\0"):
        name, given, value = item.partition("=")
        if last == "GLIBC_TUNABLES" and name.startswith("glibc."):
            found[last] += f":{item}"
        elif given:
            found[name], last = value, name
    return found


@dataclass(frozen=True)
class _Stat:
    """The parts of /proc/PID/stat that are needed. ``image`` is another after every ``exec`` and the same in a fork.

    ``state`` is T while a signal keeps it stopped.

    ``of_children`` are the ticks of those that it has waited for.
    """

    name: str
    state: str
    parent: int
    threads: int
    ticks: int
    of_children: int
    started: int
    image: tuple[str, ...]


def waited_s(pids: Iterable[int]) -> float:
    """Return how long the living threads of these processes were ready to run while no CPU was free for them."""
    waits = [
        (text(f"/proc/{pid}/task/{thread}/schedstat") or "").split()
        for pid in pids
        for thread in attempt(partial(os.listdir, f"/proc/{pid}/task")) or []
    ]
    return sum(int(words[1]) for words in waits if len(words) > 1) / 1e9


def cpu_s_below(pid: int) -> float:
    """Return the CPU time of all living processes below one, and of those that they have waited for."""
    found = 0
    for child in children(pid):
        stat = attempt(partial(_stat, child))
        found += stat.ticks + stat.of_children if stat else 0
        found += round(cpu_s_below(child) * _TICKS_PER_S)
    return found / _TICKS_PER_S


@dataclass
class _Process:
    """A process at the last look; ``waited`` holds nanoseconds on a CPU, and ready without one, of each thread."""

    program: Program
    stat: _Stat
    waited: dict[int, tuple[int, int]] = field(default_factory=dict)
    next_s: float = 0.0

    def read_waits(self, pid: int, since_s: float) -> None:
        """Read them (https://docs.kernel.org/scheduler/sched-stats.html); those of ended threads stay as last seen."""
        self.next_s = _LATER * since_s
        for thread in attempt(lambda: os.listdir(f"/proc/{pid}/task")) or []:
            words = (text(f"/proc/{pid}/task/{thread}/schedstat") or "").split()
            if len(words) > 1:
                self.waited[int(thread)] = int(words[0]), int(words[1])

    def waits_ns(self) -> tuple[int, int]:
        """Return the sums over all threads."""
        return sum(ran for ran, _ in self.waited.values()), sum(late for _, late in self.waited.values())


def _stat(pid: int) -> _Stat:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        head, _, tail = file.read().rpartition(")")
    words = tail.split()  # the state, which proc(5) calls field 3, stands first
    # Addresses of code, stack, arguments and variables: the kernel lays them out anew for every program.
    image = (words[23], words[25], *words[45:49])
    user, system, of_user, of_system = map(int, words[11:15])
    name, state = head.partition("(")[2], words[0]
    return _Stat(
        name, state, int(words[1]), int(words[17]), user + system, of_user + of_system, int(words[19]), image
    )  # fmt: skip


class Watch:
    """Looks at a process and all its descendants while they run, for a five-hundredth of the time.

    It is the only child of this process, which is the subreaper of all that it leaves behind.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.cost_s = 0.0
        self.processes = self.stops = 0
        self._began = time.monotonic()
        self._programs: dict[tuple[str, ...], Program] = {}
        self._living: dict[tuple[int, int], _Process] = {}
        self._ended_ns = (0, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more, but once at what the first process and its orphans cost in the end.

        They are there until they are waited for.
        """
        self._over.set()
        self._thread.join()
        self._look(self._family(), last=True)

    def programs(self) -> list[Program]:
        """Return all programs that were seen, the one that took most CPU time first."""
        return sorted(self._programs.values(), key=lambda program: -program.cpu_s)

    def run_delay_s(self, cpu_s: float) -> float | None:
        """Return how long threads were ready to run without a CPU, of a command that took ``cpu_s`` CPU seconds.

        What was seen is taken for the whole, as threads take the rest of their waiting with them when they end. None
        where less than half of the CPU time was seen.
        """
        parts = [self._ended_ns, *(process.waits_ns() for process in self._living.values())]
        ran, late = (sum(part) / 1e9 for part in zip(*parts))
        return late * max(1.0, cpu_s / ran) if ran > 0 and ran >= cpu_s / 2 else None

    def _look_on(self) -> None:
        pause = _SHORTEST_S
        while not self._over.wait(pause):
            started = time.thread_time()
            self._look(self._family())
            taken = time.thread_time() - started
            self.cost_s += taken
            owed = (self.cost_s + taken - _FIRST_S) / _SHARE - (time.monotonic() - self._began)
            pause = max(owed, min(_LONGEST_S, 1.3 * pause))

    def _family(self) -> list[int]:
        """Return the process, its orphans (whose parent is this process, as their subreaper), and all below them."""
        pids = [self.pid, *(pid for pid in children(os.getpid()) if pid != self.pid)]
        for pid in pids:
            pids += children(pid)
        return pids

    def _look(self, pids: list[int], last: bool = False) -> None:
        living: dict[tuple[int, int], _Process] = {}
        for pid in pids:
            stat = attempt(partial(_stat, pid))
            if stat:
                living[pid, stat.started] = self._looked_at(pid, stat, last)
        self._count_the_ended(living)
        for key, process in self._living.items():
            if key not in living:
                ran, late = process.waits_ns()
                self._ended_ns = self._ended_ns[0] + ran, self._ended_ns[1] + late
        self._living = living

    def _looked_at(self, pid: int, stat: _Stat, last: bool) -> _Process:
        before = self._living.get((pid, stat.started))
        if before is None:
            self.processes += 1
        self.stops += stat.state == "T" and not (before and before.stat.state == "T")
        # What ends has given its memory back already, so that all addresses are 0.
        if before and (last or stat.image in (before.stat.image, _GONE)):
            program = before.program
        else:
            program = self._programs.setdefault(stat.image, Program(pid, stat.name, len(self._programs)))
        program.took(pid, (stat.ticks - (before.stat.ticks if before else 0)) / _TICKS_PER_S)
        program.threads = max(program.threads, stat.threads)
        since_s = time.monotonic() - self._began
        if not last:
            program.look(pid, since_s)
        seen = _Process(program, stat, before.waited, before.next_s) if before else _Process(program, stat)
        if last or since_s >= seen.next_s:
            seen.read_waits(pid, since_s)
        return seen

    def _count_the_ended(self, living: dict[tuple[int, int], _Process]) -> None:
        """Add what processes took after they were last seen: their parent is told it when it waits for them.

        What is more than had been seen of them is nobody's: they may have become another program.
        """
        for key, parent in living.items():
            before = self._living.get(key)
            ended = [
                (other[0], process)
                for other, process in self._living.items()
                if other not in living and process.stat.parent == key[0]
            ]
            if before and ended:
                seen = sum(process.stat.ticks + process.stat.of_children for _, process in ended)
                rest = parent.stat.of_children - before.stat.of_children - seen
                pid, longest = max(ended, key=lambda one: one[1].stat.ticks)
                if 0 < rest <= seen:
                    longest.program.took(pid, rest / _TICKS_PER_S)

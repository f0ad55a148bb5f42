"""A monitor of every program that a command starts: its libraries, variables and costs, seen from outside.

A program is what one ``exec`` started. Children that it forks without another ``exec`` belong to it, because they share
its libraries and variables.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.evidence import connected_servers, elf, memory, openmp_runtimes_in_use, proc_files
from bench.evidence.proc_files import TICKS_PER_S, Stat, stat_of
from bench.evidence.reading import attempt, fields, text

#: The share of CPU time from which a program counts as working; also for a thread, relative to the busiest one.
WORKS = 0.1
#: Reading details of processes may take this much CPU time at the start, and then this share of the run time. Listing
#: processes and their costs may take the same share again.
_FIRST_S, _SHARE = 0.03, 0.002
#: The budget is this many times larger for a program that was never read, or whose threads have no known runtime.
_NEW = 3.0
_SHORTEST_S, _LONGEST_S = 0.005, 0.25
#: The waits of threads are read at ages that grow by this factor: a process may have hundreds of threads.
_LATER = 1.3
#: Mappings are read at ages that grow by this factor: the lists are long and rarely change.
_MAPPED_LATER = 2.0
#: If a program's libraries are unchanged for this time (seconds), its loader is done.
_LOADED_S = 0.1
#: CPU seconds that a process must use before its threads are counted again.
_WORKED_S = 0.05
_GONE = ("0",) * 6


class Program:
    """A program, started by one ``exec``; ``threads`` is the most that one of its processes had at a time.

    ``number`` counts programs in the order in which they were first seen. Per process, ``of_process`` is the CPU time,
    ``teams`` the most threads that each runtime started, and ``busy`` the threads that worked. ``threads_set`` are
    thread counts requested from OpenMP. ``loaded``: ``libraries`` is complete, so that absence means something.
    ``probe`` is what a probe inside of it wrote at its end, None if there is nothing.
    """

    def __init__(
        self, pid: int, name: str, number: int = 0, cpu_s: float = 0.0, probe: dict[str, Any] | None = None
    ) -> None:
        self.pid, self.name, self.number, self.probe = pid, name, number, probe
        self.cpu_s: float = probe["cpu_s"] if probe else cpu_s
        self.path: str | None = None
        self.threads = 0
        self.libraries: set[str] | None = None
        self.loaded = False
        self.variables: dict[str, str] | None = None
        self.affinities: dict[str, None] = {}
        self.memory: dict[str, Any] = {"thp_process": None, "policy": None}
        self.of_process: dict[int, float] = {}
        self.threads_set: list[int] = []
        self.teams: dict[int, dict[str, int]] = {}
        self.busy: dict[int, int] = {}
        self._first_look: float | None = None
        self._next_look = 0.0
        self._counted: dict[int, tuple[int, float]] = {}

    @property
    def is_new(self) -> bool:
        """Whether its details were never read."""
        return self._first_look is None

    def add_cpu_time(self, pid: int, cpu_s: float) -> None:
        """Add CPU time of one of its processes."""
        self.cpu_s += cpu_s
        self.of_process[pid] = self.of_process.get(pid, 0.0) + cpu_s

    def look(self, pid: int, since_s: float, is_same: Callable[[], bool] = lambda: True) -> None:
        """Read the program's mappings, variables and settings, at ages that double.

        If first read while its loader was at work, its next reading is soon, even if it started late in the run. Values
        are discarded unless ``is_same`` is still true: the process may have ended or called ``exec``.
        """
        if since_s < self._next_look:
            return
        first_look_s = since_s if self._first_look is None else self._first_look
        path = attempt(lambda: os.readlink(f"/proc/{pid}/exe")) or self.path
        libraries = attempt(partial(proc_files.libraries, pid))
        raw = text(f"/proc/{pid}/environ") if not self.variables else None
        if not is_same():
            return
        if libraries is not None and not self.loaded:
            is_settled = libraries == self.libraries and since_s - first_look_s > _LOADED_S
            self.loaded = is_settled or bool(path and attempt(partial(_has_loaded_all, path, libraries)))
        self._first_look, self._next_look = first_look_s, first_look_s + _MAPPED_LATER * (since_s - first_look_s)
        self.path = path
        if libraries is not None:
            self.libraries = (self.libraries or set()) | libraries
        if raw or (raw is not None and self.loaded):  # while a process starts, the kernel shows an empty text too
            self.variables = _variables(raw)
        # These belong to the process and survive an exec.
        affinity = fields(f"/proc/{pid}/status").get("Cpus_allowed_list")
        if affinity:
            self.affinities[affinity] = None
        memory_settings = memory.memory_requests(pid, policy=self.memory["policy"] is None)
        self.memory.update({name: value for name, value in memory_settings.items() if value is not None})

    def has_unknown_runtime(self, pid: int, threads: int) -> bool:
        """Return whether the runtime behind one process's threads is still unknown."""
        return threads > 1 and not self.teams.get(pid)

    def count_openmp_workers(self, pid: int, threads: int) -> None:
        """Count the threads that each OpenMP runtime started, if a working process has a new number of threads.

        If no thread was assigned, try again at twice the CPU time: running threads may not reveal their runtime.
        """
        worked = self.of_process.get(pid, 0.0)
        threads_before, counted_at_s = self._counted.get(pid, (0, 0.0))
        is_new, has_unknown_runtime = threads != threads_before, self.has_unknown_runtime(pid, threads)
        next_s = 2 * counted_at_s if has_unknown_runtime and not is_new else counted_at_s + _WORKED_S
        if threads > 1 and worked >= next_s and (is_new or has_unknown_runtime):
            self._counted[pid] = threads, worked
            largest_teams = self.teams.setdefault(pid, {})
            for runtime, number in (attempt(partial(openmp_runtimes_in_use.workers_of, pid)) or {}).items():
                largest_teams[runtime] = max(number, largest_teams.get(runtime, 0))


def _has_loaded_all(path: str, libraries: set[str]) -> bool:
    """Return whether all libraries that a program's file needs are mapped; preloaded ones are mapped before them.

    A loader that is part of the C library (musl's) is always mapped and proves nothing. A mapped file may have a
    version in its name: libc.so.6 is a link to libc-2.31.so.
    """
    needed_names, names = elf.needed_libraries(path), [os.path.basename(library) for library in libraries]
    if needed_names is None:
        return True  # it has no loader
    stems = [name.partition(".so")[0] for name in needed_names if not name.startswith("libc.musl-")]
    return bool(stems) and all(any(name.startswith((f"{stem}.", f"{stem}-")) for name in names) for stem in stems)


def _variables(raw: str) -> dict[str, str]:
    """Return a program's variables. glibc's loader replaces the colon after each tunable that it reads with a NUL."""
    variables: dict[str, str] = {}
    last_name = ""
    for item in raw.split("\0"):
        name, separator, value = item.partition("=")
        if last_name == "GLIBC_TUNABLES" and name.startswith("glibc."):
            variables[last_name] += f":{item}"
        elif separator:
            variables[name], last_name = value, name
    return variables


class _Process:
    """A process as last sampled, with the times of its threads."""

    def __init__(self, program: Program, stat: Stat, before: _Process | None) -> None:
        self.program, self.stat = program, stat
        self.waited: dict[int, proc_files.Scheduled] = before.waited if before else {}
        self.next_s: float = before.next_s if before else 0.0

    def read_waits(self, pid: int, since_s: float) -> None:
        """Update ``waited``; ended threads keep their values."""
        self.next_s = _LATER * since_s
        for thread in proc_files.threads(pid):
            times = proc_files.scheduled(pid, thread)
            if times:
                self.waited[thread] = times

    def waits_ns(self) -> tuple[int, int]:
        """Return (ns on a CPU, ns runnable without one), summed over all threads."""
        return sum(ran for ran, _ in self.waited.values()), sum(late for _, late in self.waited.values())


class Reaped(NamedTuple):
    """The CPU time (``cpu_s``) of children that a process waited for between two samples.

    ``ended`` are those seen before, and their descendants: (process, program, CPU time seen).
    """

    parent: int
    from_s: float
    to_s: float
    cpu_s: float
    ended: tuple[tuple[int, Program, float], ...]


class Watch:
    """A thread that samples a process and all its descendants, within a CPU budget of 0.4 % of the run time.

    The process is this process's only child, and this process is the subreaper of all its orphans.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.cost_s = self._read_s = 0.0
        self.processes = self.stops = 0
        self.reaped: list[Reaped] = []
        self.sockets = connected_servers.Sockets()
        self.left: list[str] = []
        self._began = self._looked = time.monotonic()
        self._programs: dict[tuple[str, ...], Program] = {}
        self._living: dict[tuple[int, int], _Process] = {}
        self._ended_ns = (0, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch_loop, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling, after a last reading of the costs of the first process and its orphans.

        Call it before they are reaped.
        """
        self._over.set()
        self._thread.join()
        self._look(last=True)

    def programs(self) -> list[Program]:
        """Return all programs that were seen, busiest first."""
        return sorted(self._programs.values(), key=lambda program: -program.cpu_s)

    def run_delay_s(self, cpu_s: float) -> float | None:
        """Return the seconds that threads of a command waited for a CPU; the command used ``cpu_s`` CPU seconds.

        Scales the observed waits to all CPU time, because ended threads take their last waits with them. Returns None
        if less than half of the CPU time was observed.
        """
        waits_ns = [self._ended_ns, *(process.waits_ns() for process in self._living.values())]
        ran, late = (sum(part) / 1e9 for part in zip(*waits_ns))
        return late * max(1.0, cpu_s / ran) if ran > 0 and ran >= cpu_s / 2 else None

    def _watch_loop(self) -> None:
        pause = _SHORTEST_S
        while not self._over.wait(pause):
            started = time.thread_time()
            self._look()
            look_s = time.thread_time() - started
            self.cost_s += look_s
            owed = (self.cost_s - self._read_s + look_s - _FIRST_S) / _SHARE - (time.monotonic() - self._began)
            pause = max(owed, min(_LONGEST_S, 1.3 * pause))

    def _look(self, last: bool = False) -> None:
        """Sample the process, its orphans (now children of this process) and all their descendants."""
        now, stats = time.monotonic(), proc_files.descendants(os.getpid(), [self.pid])
        living = {(pid, stat.started): self._update_process(pid, stat, last) for pid, stat in stats.items()}
        self._note_ended(living, now)
        for key, process in self._living.items():
            if key not in living:
                ran, late = process.waits_ns()
                self._ended_ns = self._ended_ns[0] + ran, self._ended_ns[1] + late
        self._living, self._looked = living, now

    def _update_process(self, pid: int, stat: Stat, last: bool) -> _Process:
        known_process = self._living.get((pid, stat.started))
        if known_process is None:
            self.processes += 1
        self.stops += stat.state == "T" and not (known_process and known_process.stat.state == "T")
        # An ending process has released its memory, so all addresses are 0.
        if known_process and (last or stat.image in (known_process.stat.image, _GONE)):
            program = known_process.program
        else:
            program = self._programs.setdefault(stat.image, Program(pid, stat.name, len(self._programs)))
        program.add_cpu_time(pid, (stat.ticks - (known_process.stat.ticks if known_process else 0)) / TICKS_PER_S)
        program.threads = max(program.threads, stat.threads)
        process = _Process(program, stat, known_process)
        started = time.thread_time()
        self._read(pid, process, last)
        self._read_s += time.thread_time() - started
        return process

    def _read(self, pid: int, process: _Process, last: bool) -> None:
        """Read a process's details and waits, as often as the budget allows."""
        program, since_s = process.program, time.monotonic() - self._began
        unseen = program.is_new or program.has_unknown_runtime(pid, process.stat.threads)
        may_take_s = (_FIRST_S + _SHARE * since_s) * (_NEW if unseen else 1.0)
        if not last and self._read_s <= may_take_s:
            program.look(
                pid, since_s, lambda: getattr(attempt(partial(stat_of, pid)), "image", _GONE) == process.stat.image
            )
            program.count_openmp_workers(pid, process.stat.threads)
        if last or (since_s >= process.next_s and self._read_s <= may_take_s):
            process.read_waits(pid, since_s)
            attempt(partial(self.sockets.look, pid))
            longest_ns = max((ran for ran, _ in process.waited.values()), default=0)
            program.busy[pid] = sum(ran >= WORKS * longest_ns for ran, _ in process.waited.values())

    def _note_ended(self, living: dict[tuple[int, int], _Process], now: float) -> None:
        """Note CPU time of ended processes that only appears in the counters of the parent that waited for them."""
        ended_processes = {key[0]: process for key, process in self._living.items() if key not in living}
        ended_by_parent: dict[int, list[tuple[int, Program, float]]] = {}
        for pid, process in ended_processes.items():
            ancestor = process.stat.parent
            while ancestor in ended_processes:
                ancestor = ended_processes[ancestor].stat.parent
            seen_s = (process.stat.ticks + process.stat.of_children) / TICKS_PER_S
            ended_by_parent.setdefault(ancestor, []).append((pid, process.program, seen_s))
        for key, parent in living.items():
            known_parent = self._living.get(key)
            child_ticks = parent.stat.of_children - known_parent.stat.of_children if known_parent else 0
            if child_ticks:
                own_ended = tuple(ended_by_parent.get(key[0], ()))
                self.reaped.append(Reaped(key[0], self._looked, now, child_ticks / TICKS_PER_S, own_ended))

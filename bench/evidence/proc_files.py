"""What /proc shows of any process and its threads (proc(5))."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from bench.evidence.reading import attempt, text

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LIBRARY = re.compile(r"\.so(\.\S+)?$")


class Stat(NamedTuple):
    """Fields of /proc/PID/stat. ``image`` changes with every ``exec`` and is the same in a fork.

    ``state`` is T while a signal keeps the process stopped. ``ticks`` is its CPU time, ``of_children`` that of children
    that it has waited for. ``started`` is in ticks since the machine did.
    """

    name: str
    state: str
    parent: int
    threads: int
    ticks: int
    of_children: int
    started: int
    image: tuple[str, ...]


def stat_of(pid: int) -> Stat:
    """Return fields of /proc/PID/stat. Raises OSError if the process is gone."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        head, _, tail = file.read().rpartition(")")
    words = tail.split()  # starts with the state, field 3 in proc(5)
    # Addresses of code, stack, arguments and variables: the kernel randomises them for every program.
    image = (words[23], words[25], *words[45:49])
    user, system, of_user, of_system = map(int, words[11:15])
    name, state = head.partition("(")[2], words[0]
    return Stat(name, state, int(words[1]), int(words[17]), user + system, of_user + of_system, int(words[19]), image)


def own_age_ns() -> int | None:
    """Return the nanoseconds since the kernel started this process, or None if that cannot be read."""
    stat = attempt(lambda: stat_of(os.getpid()))
    if stat is None:
        return None
    return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - stat.started * (1_000_000_000 // TICKS_PER_S))


def state(pid: int) -> str:
    """Return the state letter of a process, or '' if it is gone."""
    stat = attempt(partial(stat_of, pid))
    return stat.state if stat else ""


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    child_pids = []
    for thread in threads(pid):
        child_pids += [int(child) for child in (text(f"/proc/{pid}/task/{thread}/children") or "").split()]
    return child_pids


def descendants(pid: int, known: Iterable[int] = ()) -> dict[int, Stat]:
    """Return all descendants of a process, ``known`` ones first: the kernel may leave out a child as another one exits.

    Those that have ended are included until they are reaped.
    """
    pids = list(dict.fromkeys((*known, *children(pid))))
    for child in pids:
        pids += children(child)
    return {child: stat for child in pids if (stat := attempt(partial(stat_of, child)))}


def cpu_s_below(pid: int) -> float:
    """Return the CPU seconds of all living descendants of a process, and of the children they have waited for."""
    return sum(stat.ticks + stat.of_children for stat in descendants(pid).values()) / TICKS_PER_S


def threads(pid: int | str) -> list[int]:
    """Return the numbers of a process's threads; none if it is gone."""
    return [int(thread) for thread in attempt(lambda: os.listdir(f"/proc/{pid}/task")) or []]


def update_own_cpu_times() -> None:
    """Let the kernel bring the CPU times of this process's running threads up to date.

    It adds to them at every tick, so they may lack up to 10 ms for each thread. To read a thread's clock adds to them
    too. The clock's number is that of clock_getcpuclockid(3), for a thread.
    """
    for thread in threads("self"):
        attempt(partial(time.clock_gettime_ns, (~thread << 3) | 6))


class Scheduled(NamedTuple):
    """What the scheduler counts for a thread (https://docs.kernel.org/scheduler/sched-stats.html), in nanoseconds."""

    ran_ns: int
    waited_ns: int


def scheduled(pid: int | str, thread: int) -> Scheduled | None:
    """Return a thread's time on a CPU and its time runnable without one; None if it is gone or nothing counts them."""
    words = (text(f"/proc/{pid}/task/{thread}/schedstat") or "").split()
    return Scheduled(int(words[0]), int(words[1])) if len(words) > 1 else None


def waited_s(pids: Iterable[int | str]) -> float:
    """Return the seconds that living threads of these processes were runnable but waiting for a CPU."""
    threads_times = [scheduled(pid, thread) for pid in pids for thread in threads(pid)]
    return sum(times.waited_ns for times in threads_times if times) / 1e9


def libraries(pid: int | str) -> set[str]:
    """Return the shared libraries that are mapped into a process. Raises OSError if it is gone or may not be read."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        mapped = {line[line.find("/") : -1] for line in file if ".so" in line}
    return {path for path in mapped if _LIBRARY.search(path)}


def sockets(pid: int | str) -> set[str]:
    """Return the inodes of a process's sockets."""
    links = [attempt(partial(os.readlink, f"/proc/{pid}/fd/{name}")) or "" for name in os.listdir(f"/proc/{pid}/fd")]
    return {match[1] for match in map(re.compile(r"socket:\[(\d+)\]").match, links) if match}


def tcp_sockets(pid: int | str) -> Iterator[list[str]]:
    """Yield the rows of all TCP sockets in a process's network: field 1 is the address, 2 the peer's, 9 the inode."""
    for table in ("tcp", "tcp6"):
        yield from map(str.split, (text(f"/proc/{pid}/net/{table}") or "").splitlines()[1:])

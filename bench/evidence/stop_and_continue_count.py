"""A count of how often a process was stopped and continued (SIGSTOP, a suspended job): its clocks keep running.

A continued process gets SIGCONT, and its parent SIGCHLD. A frozen control group gets neither signal. In version 2 its
``cgroup.events`` file signals a change, which for a group with processes means freezing or thawing
(https://docs.kernel.org/admin-guide/cgroup-v2.html). Version 1 reports nothing.
"""

from __future__ import annotations

import os
import select
import signal

from bench.evidence import cgroup

_counted: dict[str, int] = {}
#: Polls the group's ``cgroup.events`` file, which is ready if it changed since it was read.
_group = select.poll()


def watch(children: bool = False) -> None:
    """Start counting, with ``children`` also stops of child processes."""
    _counted.update(own=0, children=0, group=0)
    signal.signal(signal.SIGCONT, _went_on)
    if children:
        signal.signal(signal.SIGCHLD, _child_changed)
    file = cgroup.open_freeze_events_file()
    if file is not None:
        os.pread(file, 4096, 0)
        _group.register(file, select.POLLPRI)


def count() -> int | None:
    """Return how often this process or a child continued after a stop, or None if nothing was counted."""
    for file, _ in _group.poll(0):
        os.pread(file, 4096, 0)
        _counted["group"] += 1
    return max(_counted.values(), default=None)


def _went_on(*_: object) -> None:
    _counted["own"] += 1


def _child_changed(*_: object) -> None:
    try:  # ended children stay for their own waiters
        while os.waitid(os.P_ALL, 0, os.WCONTINUED | os.WNOHANG):
            _counted["children"] += 1
    except ChildProcessError:
        pass

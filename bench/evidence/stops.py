"""How often a process was stopped and went on later (SIGSTOP, a suspended job): its clocks went on meanwhile.

The kernel says it: a process gets SIGCONT, its parent SIGCHLD. Who is frozen with a control group gets neither; of
version 2 the group's ``cgroup.events`` tells that it changed, and what changes of a group in which somebody lives is
that it is frozen (https://docs.kernel.org/admin-guide/cgroup-v2.html). Of version 1 nothing tells it.
"""

from __future__ import annotations

import os
import select
import signal

from bench.evidence import cgroup

_counted: dict[str, int] = {}
#: The group's file, which has something to say when it changed since it was read.
_group = select.poll()


def watch(children: bool = False) -> None:
    """Count from now on, of the ``children`` too if asked for."""
    _counted.update(own=0, children=0, group=0)
    signal.signal(signal.SIGCONT, _went_on)
    if children:
        signal.signal(signal.SIGCHLD, _child_changed)
    file = cgroup.events()
    if file is not None:
        os.pread(file, 4096, 0)
        _group.register(file, select.POLLPRI)


def count() -> int | None:
    """Return how often this process, or one of its children, went on after it was stopped; None: nobody counted."""
    for file, _ in _group.poll(0):
        os.pread(file, 4096, 0)
        _counted["group"] += 1
    return max(_counted.values(), default=None)


def _went_on(*_: object) -> None:
    _counted["own"] += 1


def _child_changed(*_: object) -> None:
    try:  # what has ended stays there for whoever waits for it
        while os.waitid(os.P_ALL, 0, os.WCONTINUED | os.WNOHANG):
            _counted["children"] += 1
    except ChildProcessError:
        pass

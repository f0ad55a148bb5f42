"""How often a process was stopped and went on later (SIGSTOP, a suspended job): its clocks went on meanwhile.

The kernel says it: a process gets SIGCONT, its parent SIGCHLD. A container that is frozen gets neither.
"""

from __future__ import annotations

import os
import signal

_counted: dict[str, int] = {}


def watch(children: bool = False) -> None:
    """Count from now on, of the ``children`` too if asked for."""
    _counted.update(own=0, children=0)
    signal.signal(signal.SIGCONT, _went_on)
    if children:
        signal.signal(signal.SIGCHLD, _child_changed)


def count() -> int | None:
    """Return how often this process, or one of its children, went on after it was stopped; None: nobody counted."""
    return max(_counted.values(), default=None)


def _went_on(*_: object) -> None:
    _counted["own"] += 1


def _child_changed(*_: object) -> None:
    try:  # what has ended stays there for whoever waits for it
        while os.waitid(os.P_ALL, 0, os.WCONTINUED | os.WNOHANG):
            _counted["children"] += 1
    except ChildProcessError:
        pass

"""Limit on processes and threads, so that a program that forks without end does not stall the machine."""

from __future__ import annotations

import os
import resource

#: Processes and threads that a program may start: more than a program that works needs.
MOST_PROCESSES = 4096 + 64 * (os.cpu_count() or 1)
#: So many processes are mentioned if the program does not end.
MANY = 1000


def process_limit_for_program() -> int:
    """Return RLIMIT_NPROC for a program, 0 for none: root needs a control group (``engines/process_limits.py``)."""
    if not os.geteuid():
        return 0
    limit = _own_threads() + MOST_PROCESSES
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NPROC)
    return limit if hard_limit == resource.RLIM_INFINITY or limit < hard_limit else 0


def _own_threads() -> int:
    """Return the number of threads of this user, which the kernel counts."""
    user, threads = os.getuid(), 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == user:
                threads += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # it has ended
            continue
    return threads

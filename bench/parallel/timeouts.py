"""Reading a time-out out of what a rank said: Gloo and NCCL word it differently, and so do their stores."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: What was waited for, and the limit in seconds.
Timeout = tuple[str, float]

_WORDS = (
    # NCCL's watchdog thread; the process then ends itself with SIGABRT.
    re.compile(r"collective operation timeout: Work\w*\(SeqNum=\d+, OpType=(?P<what>\w+),.*?Timeout\(ms\)=(?P<ms>\d+)"),
    # Gloo, Horovod's too, in the rank that waits for data of another.
    re.compile(r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation"),
    # torch's store, by which ranks tell each other where they are.
    re.compile(r"wait timeout after (?P<ms>\d+)ms"),
)


def find_timeout(text: str) -> Timeout | None:
    """Return (what was waited for, the limit in seconds) when ``text`` tells of a time-out, else None."""
    for pattern in _WORDS:
        match = pattern.search(text)
        if match:
            return match.groupdict().get("what") or "a collective", int(match["ms"]) / 1000
    return None


def timeout_message(timeout: Timeout, waiting: int, missing: Sequence[int], world: int) -> str:
    """Say which ranks did not take part (``missing``, as far as this machine can tell) and who waited for them."""
    operation, seconds = timeout
    if not missing:
        return f"time-out: {operation} was not over within {seconds:g} s, for which rank {waiting} of {world} waited"
    names = ", ".join(map(str, missing))
    return (
        f"time-out: rank {names} of {world} took no part in {operation} within {seconds:g} s, "
        f"for which rank {waiting} of {world} waited (still running then: rank {names})"
    )

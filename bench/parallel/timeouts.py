"""Detection of time-outs in a rank's log: Gloo, NCCL and their stores word them differently."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: The operation that waited, and its limit in seconds.
Timeout = tuple[str, float]

_WORDS = (
    # NCCL's watchdog thread, which then ends the process with SIGABRT.
    re.compile(r"collective operation timeout: Work\w*\(SeqNum=\d+, OpType=(?P<what>\w+),.*?Timeout\(ms\)=(?P<ms>\d+)"),
    # Gloo, also Horovod's, in a rank that waits for another's data.
    re.compile(r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation"),
    # torch's store, in which ranks publish their addresses.
    re.compile(r"wait timeout after (?P<ms>\d+)ms"),
)


def find_timeout(text: str) -> Timeout | None:
    """Return (operation, limit in seconds) if ``text`` reports a time-out, otherwise None."""
    for pattern in _WORDS:
        match = pattern.search(text)
        if match:
            return match.groupdict().get("what") or "a collective", int(match["ms"]) / 1000
    return None


def timeout_message(timeout: Timeout, waiting: int, missing: Sequence[int], world: int) -> str:
    """Return a message with the ranks that did not take part (``missing``, if known) and the rank that waited."""
    operation, seconds = timeout
    if not missing:
        return f"time-out: {operation} was not over within {seconds:g} s, for which rank {waiting} of {world} waited"
    names = ", ".join(map(str, missing))
    return (
        f"time-out: rank {names} of {world} took no part in {operation} within {seconds:g} s, "
        f"for which rank {waiting} of {world} waited (still running then: rank {names})"
    )

"""What Gloo and NCCL let be seen of their settings: connections that are there, and NCCL's own words."""

from __future__ import annotations

import os
import re
from functools import partial

from bench.evidence.reading import attempt, text

_ESTABLISHED = "01"  # include/net/tcp_states.h


def connections() -> int:
    """Return the number of this process's TCP connections."""
    own_inodes = set()
    for name in os.listdir("/proc/self/fd"):
        target = attempt(partial(os.readlink, f"/proc/self/fd/{name}")) or ""
        if target.startswith("socket:["):
            own_inodes.add(target[len("socket:[") : -1])
    lines = [line.split() for table in ("tcp", "tcp6") for line in (text(f"/proc/self/net/{table}") or "").splitlines()]
    return sum(words[3] == _ESTABLISHED and words[9] in own_inodes for words in lines if len(words) > 9)


def is_lazy(before: int | None, after: int | None, world: int) -> bool | None:
    """Whether processes that joined are connected to nobody yet; None where it cannot be told."""
    return None if before is None or after is None or world < 2 else after <= before


def asked_of_nccl(path: str) -> dict[str, str]:
    """Return variables that have NCCL write into a file what it takes at its start; {} where the user has it say some.

    It writes a few lines for each communicator, and puts the process number for ``%p`` in ``path``.
    """
    if "NCCL_DEBUG" in os.environ:
        return {}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": path}


def taken_by_nccl(path: str | None) -> dict[str, str] | None:
    """Return what NCCL says it took and made (``described``), None where it did not start or said it elsewhere."""
    log_text = text(path) if path else None
    return None if log_text is None else described(log_text)


def described(said: str) -> dict[str, str]:
    """Read NCCL's lines of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV (its src/misc/param.cc and init.cc).

    Variables have their names, but for those of NCCL_DEBUG, which whoever asks sets; ``channels`` and ``nvls_channels``
    are those of the communicator made last.
    """
    environment_settings = dict(
        re.findall(r"NCCL INFO (NCCL_(?!DEBUG)\w+) set by environment to (.*?)\.?$", said, re.MULTILINE)
    )
    channel_counts = re.findall(r"NCCL INFO (\d+) coll channels,(?:.*? (\d+) nvls channels,)?", said)
    channels = zip(("channels", "nvls_channels"), channel_counts[-1]) if channel_counts else ()
    return {**environment_settings, **{name: number for name, number in channels if number}}

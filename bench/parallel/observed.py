"""Settings of Gloo and NCCL, read from open connections and NCCL's log."""

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
    """Return whether joined processes have no connections yet, or None if that is unknown."""
    return None if before is None or after is None or world < 2 else after <= before


def nccl_log_variables(path: str) -> dict[str, str]:
    """Return variables that make NCCL log its settings to ``path``; {} if the user has set ``NCCL_DEBUG``.

    NCCL writes a few lines per communicator, and replaces ``%p`` in ``path`` with the process id.
    """
    if "NCCL_DEBUG" in os.environ:
        return {}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": path}


def nccl_settings(path: str | None) -> dict[str, str] | None:
    """Return NCCL's settings from its log (see ``parse_nccl_log``), or None if there is no log."""
    log_text = text(path) if path else None
    return None if log_text is None else parse_nccl_log(log_text)


def parse_nccl_log(output: str) -> dict[str, str]:
    """Parse NCCL's output for NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV (its src/misc/param.cc and init.cc).

    Variables keep their names, without NCCL_DEBUG's, which this benchmark may have set. ``channels`` and
    ``nvls_channels`` are those of the last communicator.
    """
    environment_settings = dict(
        re.findall(r"NCCL INFO (NCCL_(?!DEBUG)\w+) set by environment to (.*?)\.?$", output, re.MULTILINE)
    )
    channel_counts = re.findall(r"NCCL INFO (\d+) coll channels,(?:.*? (\d+) nvls channels,)?", output)
    channels = zip(("channels", "nvls_channels"), channel_counts[-1]) if channel_counts else ()
    return {**environment_settings, **{name: number for name, number in channels if number}}

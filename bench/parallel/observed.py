"""Evidence on processes that work together: how many took part, and the settings of Gloo and NCCL."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from bench.evidence import proc_files
from bench.evidence.reading import text

if TYPE_CHECKING:
    from bench.options import Options
    from bench.rank_and_device import Place

_ESTABLISHED = "01"  # include/net/tcp_states.h


def evidence(options: Options, place: Place | None) -> dict[str, Any]:
    """Return ``evidence.parallel``; the supervisor adds each rank's part. ``place`` is None for a skipped workload."""
    from bench.parallel import device_and_learning_rate  # not loaded for programs: their trials should start fast

    horovod = sys.modules.get("horovod") if options["parallel"] == "horovod" else None
    return {
        "way": options["parallel"],
        "device": device_and_learning_rate.device(options),
        "processes": place.world if place else 1,
        "nodes": options["nodes"],
        "processes_asked": os.environ.get(device_and_learning_rate.PROCESSES_VARIABLE),
        "threads_per_process": sys.modules["torch"].get_num_threads(),
        "backend": place.backend if place else None,
        "interface": place.interface if place else None,
        "lazy": place.lazy if place else None,
        "nccl": nccl_settings(place.nccl_words) if place else None,
        "horovod": getattr(horovod, "__version__", None),
        "ranks": [],
    }


def connections() -> int:
    """Return the number of this process's TCP connections."""
    own_inodes = proc_files.sockets("self")
    return sum(words[3] == _ESTABLISHED and words[9] in own_inodes for words in proc_files.tcp_sockets("self"))


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

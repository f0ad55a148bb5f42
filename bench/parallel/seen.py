"""Evidence on parallel runs: how many processes took part, and facts about each one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from bench.options import Options
from bench.parallel import choices, observed

if TYPE_CHECKING:
    from bench.parallel.rank import Member
    from bench.place import Place


def _horovod(options: Options) -> str | None:
    """Return the version of Horovod that the ranks used, or None for other strategies."""
    module = sys.modules.get("horovod") if options["parallel"] == "horovod" else None
    return getattr(module, "__version__", None)


def add(document: dict[str, Any], options: Options, place: Place | None, member: Member | None) -> None:
    """Add ``evidence.parallel`` to a record, and this rank's own part, which the supervisor gathers.

    ``place`` is None if the workload was skipped before it had one.
    """
    document["evidence"]["parallel"] = {
        "way": options["parallel"],
        "device": choices.device(options),
        "processes": place.world if place else 1,
        "nodes": options["nodes"],
        "processes_asked": os.environ.get(choices.PROCESSES_VARIABLE),
        "threads_per_process": torch.get_num_threads(),
        "backend": place.backend if place else None,
        "interface": place.interface if place else None,
        "lazy": place.lazy if place else None,
        "nccl": observed.nccl_settings(place.nccl_words) if place else None,
        "horovod": _horovod(options),
        "ranks": [],
    }
    if member is not None:
        document["rank"] = {
            "rank": member.rank,
            "node": member.node,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "affinity": sorted(os.sched_getaffinity(0)),
        }

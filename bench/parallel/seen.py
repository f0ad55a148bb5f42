"""What a parallel trial adds to the evidence: how many processes really took part, and each one's share."""

import os
import sys

import torch

from bench.parallel import choices


def _horovod(options):
    """Return the version of the Horovod that the ranks used, None for any other way."""
    module = sys.modules.get("horovod") if options["parallel"] == "horovod" else None
    return getattr(module, "__version__", None)


def add(document, options, member):
    """Add ``evidence.parallel`` (and this rank's own part, which the supervisor gathers) to a record."""
    place = getattr(member, "place", None)
    world = place.world if place else 1
    document["evidence"]["parallel"] = {
        "way": options["parallel"],
        "device": choices.device(options),
        "processes": world,
        "nodes": options["nodes"],
        "processes_asked": os.environ.get(choices.PROCESSES_VARIABLE),
        "threads_per_process": torch.get_num_threads(),
        "backend": place.backend if place else None,
        "interface": place.interface if place else None,
        "horovod": _horovod(options),
        "ranks": [],
    }
    if member is not None:
        document["rank"] = {
            "rank": member.rank,
            "node": member.job["meet"]["node"] if member.job["meet"] else None,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "affinity": sorted(os.sched_getaffinity(0)),
        }

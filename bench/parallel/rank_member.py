"""A rank as a member of its job: what it knows of itself, and how it joins the other ranks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from bench.errors import RunError
from bench.options import Options

if TYPE_CHECKING:
    from bench.rank_and_device import Place


class Member:
    """A rank as a member of its job: its age, its node, and how it joins the other ranks."""

    def __init__(self, job: dict[str, Any], rank: int) -> None:
        self.job = job
        self.rank = rank

    def facts(self) -> dict[str, Any]:
        """Return this rank's own part of the record, which the supervisor gathers."""
        return {
            "rank": self.rank,
            "node": self.job["meet"] and self.job["meet"]["node"],
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "threads": sys.modules["torch"].get_num_threads(),
            "affinity": sorted(os.sched_getaffinity(0)),
        }

    def job_age_ns(self) -> int:
        """Return the nanoseconds since the supervisor's process began."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(self.job["began_ns"])

    @contextmanager
    def joined(self, options: Options, cpus: Sequence[int] | None) -> Iterator[Place]:
        """Join the other ranks, yield the Place among them, and leave them at the end."""
        import torch

        from bench import devices
        from bench.parallel import device_and_learning_rate, rendezvous
        from bench.rank_and_device import Place

        if not torch.distributed.is_available():
            raise RunError("this torch was built without torch.distributed")
        if "OMP_NUM_THREADS" not in os.environ:  # an equal part of this machine's CPUs
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self.job["here"]))
        devices.refuse_to_share_gpus(torch, options, self.job["here"])
        device = devices.open_device(device_and_learning_rate.device(options), self.rank % self.job["here"])
        world, folder = self.job["world"], self.job["folder"]
        place = Place(device, self.rank, world, cpus=cpus, age_ns=self.job_age_ns, scratch=folder)
        with rendezvous.join_group(place, folder, options, self.job["meet"]) as here, _library(options, here):
            yield here


def _library(options: Options, place: Place) -> AbstractContextManager[None]:
    """Return the context of a strategy that initialises its own library among the ranks."""
    if options["parallel"] != "horovod":
        return nullcontext()
    from bench.parallel import horovod_strategy

    return horovod_strategy.started(place, options)

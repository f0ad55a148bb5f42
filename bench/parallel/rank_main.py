"""The process of one rank, ``python -m bench.parallel.rank_main JOB RANK``; only the supervisor starts it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from bench import record, trial_process
from bench.errors import BenchError, RunError, exit_now, print_error
from bench.evidence import stop_signals
from bench.options import Options

if TYPE_CHECKING:
    from bench.device_and_rank import Place


def main(argv: Sequence[str]) -> int:
    """Run the rank and write its record; after a failure, the last line of its log is the reason."""
    with open(argv[0], encoding="utf-8") as file:
        job = json.load(file)
    rank = int(argv[1])
    try:
        stop_signals.watch()
        document = trial_process.run(job["options"], job["data_dir"], Member(job, rank))
        if document is not None:  # None only for supervisors of nodes
            record.write(document, os.path.join(job["folder"], f"rank-{rank}.json"))
    except (BenchError, RunError) as error:
        exit_now(print_error(error, 2 if isinstance(error, BenchError) else 1))
    except Exception as error:
        traceback.print_exc()
        exit_now(print_error(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", 1))
    return 0


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

    def age_ns(self) -> int:
        """Return the nanoseconds since the supervisor's process began."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(self.job["began_ns"])

    @contextmanager
    def joined(self, options: Options, cpus: Sequence[int] | None) -> Iterator[Place]:
        """Join the other ranks, yield the Place among them, and leave them at the end."""
        import torch

        from bench import devices
        from bench.device_and_rank import Place
        from bench.parallel import derived_options, rendezvous

        if not torch.distributed.is_available():
            raise RunError("this torch was built without torch.distributed")
        if "OMP_NUM_THREADS" not in os.environ:  # an equal part of this machine's CPUs
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self.job["here"]))
        devices.refuse_to_share_gpus(torch, options, self.job["here"])
        device = devices.open_device(derived_options.device(options), self.rank % self.job["here"])
        world, folder = self.job["world"], self.job["folder"]
        place = Place(device, self.rank, world, cpus=cpus, age_ns=self.age_ns, scratch=folder)
        with rendezvous.join_group(place, folder, options, self.job["meet"]) as here, _library(options, here):
            yield here


def _library(options: Options, place: Place) -> AbstractContextManager[None]:
    """Return the context of a strategy that initialises its own library among the ranks."""
    if options["parallel"] != "horovod":
        return nullcontext()
    from bench.parallel import horovod_strategy

    return horovod_strategy.started(place, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

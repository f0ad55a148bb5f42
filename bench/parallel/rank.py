"""The process of one rank, ``python -m bench.parallel.rank JOB RANK``; only the supervisor starts it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from bench.errors import BenchError, RunError
from bench.options import Options

if TYPE_CHECKING:
    from bench.place import Place


def main(argv: Sequence[str]) -> int:
    """Run the rank and write its record; after a failure, the last line of its log is the reason."""
    with open(argv[0], encoding="utf-8") as file:
        job = json.load(file)
    rank = int(argv[1])
    try:
        _run(job, rank)
    except (BenchError, RunError) as error:
        print("bench: error: " + " ".join(str(error).split()), file=sys.stderr, flush=True)
        _leave(2 if isinstance(error, BenchError) else 1)
    except Exception as error:
        traceback.print_exc()
        print(
            f"bench: error: {type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr, flush=True
        )
        _leave(1)
    return 0


def _leave(status: int) -> NoReturn:
    """Exit without the interpreter's clean-up, which can hang if a process group's peers are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(job: dict[str, Any], rank: int) -> None:
    from bench import record, workload
    from bench.evidence import stops

    stops.watch()
    document = workload.run(job["options"], job["data_dir"], Member(job, rank))
    if document is not None:  # None only for supervisors of nodes
        record.write(document, os.path.join(job["folder"], f"rank-{rank}.json"))


class Member:
    """A rank as a member of its job: its age, its node, and how it joins the other ranks."""

    def __init__(self, job: dict[str, Any], rank: int) -> None:
        self.job = job
        self.rank = rank

    @property
    def node(self) -> str | None:
        """The name of the rank's node, or None if all ranks are on one machine."""
        return self.job["meet"]["node"] if self.job["meet"] else None

    def age_ns(self) -> int:
        """Return the nanoseconds since the supervisor's process began."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(self.job["began_ns"])

    @contextmanager
    def joined(self, options: Options, cpus: Sequence[int] | None) -> Iterator[Place]:
        """Join the other ranks, yield the Place among them, and leave them at the end."""
        import torch

        from bench import devices
        from bench.parallel import choices, rendezvous
        from bench.place import Place

        if not torch.distributed.is_available():
            raise RunError("this torch was built without torch.distributed")
        share_threads(torch, self.job["here"])
        devices.refuse_to_share_gpus(torch, options, self.job["here"])
        device = devices.open_device(choices.device(options), self.rank % self.job["here"])
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


def share_threads(torch: Any, here: int) -> None:
    """Give each process of this machine an equal part of its CPUs as threads, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // here))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One rank's process: ``python -m bench.parallel.rank JOB RANK``; started by the supervisor, not by people."""

import json
import os
import sys
import time
import traceback
from contextlib import nullcontext

from bench.errors import BenchError, RunError


def main(argv):
    """Do the rank's share and write its record; the last line of its log is the reason when it breaks."""
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


def _leave(status):
    """End without the interpreter's clean-up: a process group whose peers are gone can hang in it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(job, rank):
    from bench import record, workload

    document = workload.run(job["options"], job["data_dir"], Member(job, rank))
    record.write(document, os.path.join(job["folder"], f"rank-{rank}.json"))


class Member:
    """What a rank knows of its job."""

    def __init__(self, job, rank):
        self.job = job
        self.rank = rank

    def age_ns(self):
        """Return nanoseconds since the supervisor's process began."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self.job["began_ns"]

    def measure(self, options, prepared, import_ns):
        """Join the others, do this rank's share, and return as ``measure`` does."""
        import torch

        from bench.parallel import devices, measure, meeting

        if not torch.distributed.is_available():
            raise RunError("this torch was built without torch.distributed")
        share_threads(torch, self.job["here"])
        self.threads = torch.get_num_threads()
        devices.refuse_to_share_gpus(torch, options, self.job["here"])
        group = meeting.joined(self.rank, self.job["world"], self.job["folder"], options, self.job["meet"])
        with group as self.place, _library(options, self.place):
            return measure.measure(options, prepared, import_ns, self.place, self.age_ns)


def _library(options, place):
    """Return the context of a way that starts a library of its own among the ranks."""
    if options["parallel"] != "horovod":
        return nullcontext()
    from bench.parallel import horovod_way

    return horovod_way.started(place, options)


def share_threads(torch, here):
    """Give each process of this machine its part of the CPUs it may use, unless OMP_NUM_THREADS says otherwise."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // here))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

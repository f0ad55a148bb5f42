"""The supervisor: one ``python -m bench run`` that starts its ranks, watches them and writes their one record."""

import json
import os
import shutil
import sys
import tempfile
import time

from bench import clock, data_sets
from bench.errors import RunError
from bench.parallel import choices
from bench.parallel.ranks import Ranks, python

_SUMMED = (
    "peak_rss_bytes",
    "minor_faults",
    "major_faults",
    "voluntary_switches",
    "involuntary_switches",
    "user_s",
    "system_s",
    "peak_gpu_bytes",
)


def run(options, data_dir):
    """Run the workload on its ranks and return the job's record: rank 0's, with what every rank adds.

    Raises RunError that names the rank which broke first; its log goes to standard error before.
    """
    choices.check(options)
    world = choices.processes(options)
    folder = tempfile.mkdtemp(prefix="bench-ranks.")
    try:
        job = {
            "options": options,
            "world": world,
            "folder": folder,
            "data_dir": _ready_data(options, data_dir, folder),
            "began_ns": _boot_ns() - (clock.process_age_ns() or 0),
        }
        path = os.path.join(folder, "job.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(job, file)
        _watch(path, world, folder)
        return merge([_read(os.path.join(folder, f"rank-{rank}.json"), rank) for rank in range(world)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _boot_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _ready_data(options, data_dir, folder):
    """Make the data before any rank starts: N ranks must not each make it."""
    if options["collective"] != "none" or (data_dir and data_sets.find(options["data"], data_dir)):
        return data_dir and os.path.abspath(data_dir)
    target = data_dir if data_dir and os.access(data_dir, os.W_OK) else os.path.join(folder, "data")
    os.makedirs(target, exist_ok=True)
    data_sets.prepare(options["data"], target, offline=True)
    return os.path.abspath(target)


def _watch(job, world, folder):
    above = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ranks = Ranks(lambda rank: [*python(), "-m", "bench.parallel.rank", job, str(rank)], world, folder, above)
    try:
        failure = ranks.wait()
        for rank in range(world):
            said = ranks.last_words(rank)
            if said:
                print("\n".join(f"[rank {rank}] {line}" for line in said.splitlines()), file=sys.stderr)
    finally:
        ranks.end()
    if failure:
        said = ranks.last_words(failure.rank).splitlines()
        reason = f": {_plain(said[-1])}" if said else ""
        still = ", ".join(map(str, failure.running))
        stuck = f" (still running then: rank {still})" if still else ""
        raise RunError(f"rank {failure.rank} of {world} {failure.how}{reason}{stuck}")


def _plain(line):
    mark = "bench: error: "
    return line[len(mark) :] if line.startswith(mark) else line


def _read(path, rank):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise RunError(f"rank {rank} ended well but left no readable record: {error}") from error


def merge(records):
    """Return rank 0's record with counters summed over all ranks and each rank's own part in its evidence."""
    first = records[0]
    parts = [record.pop("rank") for record in records]
    skipped = next((record for record in records if record["skipped"]), None)
    if skipped:
        return skipped
    for part, record in zip(parts, records):
        part["steps_ns"] = record["timing"]["steps_ns"]
        part["training_ns"] = record["timing"]["training_ns"]
        part["peak_rss_bytes"] = record["metrics"]["peak_rss_bytes"]
    for name in _SUMMED:
        if name in first["metrics"]:
            values = [record["metrics"][name] for record in records]
            first["metrics"][name] = None if None in values else sum(values)
    first["evidence"]["parallel"]["ranks"] = parts
    return first

"""The supervisor: one ``python -m bench run`` that starts ranks, watches them and writes one record for the job."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from bench import data_sets
from bench.errors import RunError
from bench.evidence.proc_files import own_age_ns
from bench.options import Options
from bench.parallel import device_and_learning_rate
from bench.parallel.node_coordination import Node
from bench.parallel.rank_processes import Failure, Ranks, python, timeout_message

_SUMMED = (
    "peak_rss_bytes", "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches", "user_s",
    "system_s", "run_delay_s", "peak_gpu_bytes",
)  # fmt: skip


def run(options: Options, data_dir: str | None, node: Node | None = None) -> dict[str, Any] | None:
    """Run the workload on its ranks and return the job's record: rank 0's, with data from every rank.

    ``node`` is this machine's part in a job on several machines (``bench.parallel.node_coordination``); only the first
    node gets the record, the others get None. Raises RunError with the name of the rank that failed first, after
    printing every rank's log to standard error.
    """
    device_and_learning_rate.check_batch_divides(options)
    with node.telling() if node else nullcontext():
        records: list[dict[str, Any]] | None = _records(options, data_dir, node)
        if node and records:
            records = node.gather(records, options["collective_timeout_s"])
        return merge_records(records) if records else None


def _records(options: Options, data_dir: str | None, node: Node | None) -> list[dict[str, Any]]:
    """Run the ranks of this machine and return their records."""
    world = device_and_learning_rate.processes(options, os.environ)
    own_ranks = node.ranks(world) if node else range(world)
    folder = tempfile.mkdtemp(prefix=f"bench-ranks.{os.getpid()}.")
    try:
        job = {
            "options": options,
            "world": world,
            "here": len(own_ranks),
            "meet": node and node.facts_for_ranks(),
            "folder": folder,
            "data_dir": _ready_data(options, data_dir, folder),
            "began_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (own_age_ns() or 0),
        }
        path = os.path.join(folder, "job.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(job, file)
        _watch(path, world, own_ranks, folder, node)
        return [_read(os.path.join(folder, f"rank-{rank}.json"), rank) for rank in own_ranks]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ready_data(options: Options, data_dir: str | None, folder: str) -> str | None:
    """Prepare the data before any rank starts, so that it is done once, and return its folder."""
    if options["collective"] != "none" or (data_dir and data_sets.find_set_or_stand_in(options["data"], data_dir)):
        return data_dir and os.path.abspath(data_dir)
    target = data_dir if data_dir and os.access(data_dir, os.W_OK) else os.path.join(folder, "data")
    os.makedirs(target, exist_ok=True)
    data_sets.prepare(options["data"], target, offline=True)
    return os.path.abspath(target)


def _watch(job: str, world: int, own_ranks: Sequence[int], folder: str, node: Node | None) -> None:
    project_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ranks = Ranks(
        lambda n: [*python(), "-m", "bench.parallel.rank_main", job, str(own_ranks[n])],
        len(own_ranks),
        folder,
        project_root,
    )
    try:
        failure = ranks.wait()
        for number, rank in enumerate(own_ranks):
            rank_log = ranks.last_words(number)
            if rank_log:
                print("\n".join(f"[rank {rank}] {line}" for line in rank_log.splitlines()), file=sys.stderr)
    finally:
        ranks.end()
    if failure:
        message = _failure_message(
            failure, ranks.last_words(failure.rank), world, own_ranks, f" on node {node.name}" if node else ""
        )
        raise RunError(node.settle(failure.guilt, message) if node else message)


def _failure_message(failure: Failure, log: str, world: int, own_ranks: Sequence[int], where: str) -> str:
    """Return a one-line description of the failure; ``log`` is that of the rank that failed first."""
    running = [own_ranks[number] for number in failure.running]
    if failure.timeout:
        return timeout_message(failure.timeout, own_ranks[failure.rank], running, world) + where
    log_lines = log.splitlines()
    reason = f": {log_lines[-1].removeprefix('bench: error: ')}" if log_lines else ""
    stuck = f" (still running then: rank {', '.join(map(str, running))})" if running else ""
    return f"rank {own_ranks[failure.rank]} of {world}{where} {failure.how}{reason}{stuck}"


def _read(path: str, rank: int) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise RunError(f"rank {rank} ended well but left no readable record: {error}") from error


def merge_records(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return rank 0's record with counters summed over all ranks, and each rank's part in its evidence.

    All ranks start the timed part together; it ends with the slowest rank (inference ranks do not wait).
    """
    first_record = records[0]
    rank_parts = [record.pop("rank") for record in records]
    skipped = next((record for record in records if record["skipped"]), None)
    if skipped:
        return skipped
    for part, record in zip(rank_parts, records):
        part["steps_ns"] = record["timing"]["steps_ns"]
        part["training_ns"] = record["timing"]["training_ns"]
        part["peak_rss_bytes"] = record["metrics"]["peak_rss_bytes"]
        part["openmp"] = (record["evidence"].get("openmp") or {}).get("library")
        part["evidence_differs"] = evidence_differences(first_record["evidence"], record["evidence"])
    for name in _SUMMED:
        if name in first_record["metrics"]:
            values = [record["metrics"][name] for record in records]
            first_record["metrics"][name] = None if None in values else sum(values)
    if len(records) > 1:
        first_record["metrics"]["others_s"] = None  # the ranks count each other
    slowest_ns = max(part["training_ns"] for part in rank_parts)
    first_record["timing"]["training_ns"] = slowest_ns
    first_record["metrics"]["training_s"] = slowest_ns / 1e9
    first_record["metrics"]["samples_per_s"] = first_record["result"]["samples"] / (slowest_ns / 1e9)
    first_record["evidence"]["parallel"]["ranks"] = rank_parts
    return first_record


#: Evidence that differs between any two processes, whatever the environment.
_FLEETING = ("load_1m", "steal_ticks", "mhz", "parallel", "memory")


def evidence_differences(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's evidence that differs from rank 0's, in the same shape; lists are compared as a whole."""
    changed: dict[str, Any] = {}
    for name, value in other.items():
        first_value = first.get(name)
        if name not in _FLEETING and value != first_value:
            both_parts = isinstance(value, dict) and isinstance(first_value, dict)
            changed[name] = evidence_differences(first[name], value) if both_parts else value
    return {name: value for name, value in changed.items() if value != {}}

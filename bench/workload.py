"""One trial, from the start of the process to its record."""

import os
import shutil
import tempfile
import time
from contextlib import contextmanager, nullcontext

from bench import data_sets, digest, evidence, needs, record
from bench.errors import BenchError, RunError, SkipError
from bench.evidence import machine
from bench.evidence.reading import attempt
from bench.parallel import choices


def run(options, data_dir, member=None, node=None):
    """Run the workload and return its record; ``data_dir`` may be read-only, or None for a temporary one.

    ``member`` is this process's part in a job of several (``bench.parallel.rank``); None where a person or a trial
    starts it, who gets the record of all. ``node`` is this machine's part in a job of several machines: only the
    first one gets the record, the others None.
    """
    if member is None and choices.has_ranks(options):
        from bench.parallel import launch

        return launch.run(options, data_dir, node)
    before = evidence.before_torch()
    import_ns = _import_torch()
    affinity_after = attempt(machine.affinity)
    document = dict(
        record.frame(), workload={"digest": digest.options_digest(options), "options": options}, skipped=None
    )
    steal = None
    try:
        needs.check(options)
        with nullcontext() if options["collective"] != "none" else _data(options["data"], data_dir) as prepared:
            measure = _measurer(options, member, before["affinity_before"])
            measured, steal = measure(options, prepared, import_ns)
        document.update(measured)
    except SkipError as reason:
        document.update(data=None, timing=None, metrics=None, result=None, skipped=str(reason))
    document["evidence"] = evidence.collect(before, affinity_after, steal)
    if choices.is_chosen(options):
        from bench.parallel import seen

        seen.add(document, options, member)
    return document


def _measurer(options, member, cpus):
    """Return what measures: called with (options, prepared data, import time), gives (record parts, stolen ticks)."""
    if member is not None:
        return member.measure
    if choices.is_chosen(options):
        from bench.parallel.measure import measure

        return measure
    from bench import trial

    return lambda options, prepared, import_ns: trial.measure(options, prepared, cpus, import_ns)


def evidence_only():
    """Return a record that holds nothing but evidence."""
    before = evidence.before_torch()
    _import_torch()
    affinity_after = attempt(machine.affinity)
    needs.wake_threads()
    return dict(record.frame(), evidence=evidence.collect(before, affinity_after))


def _import_torch():
    start = time.perf_counter_ns()
    try:
        import torch  # noqa: F401 - its cost is what is measured
    except ImportError as error:
        raise RunError(f"this Python cannot import torch: {error}") from error
    return time.perf_counter_ns() - start


@contextmanager
def _data(name, data_dir):
    """Give the prepared data set from ``data_dir``, made there or in a temporary folder."""
    ready = data_sets.find(name, data_dir) if data_dir else None
    if ready is None and data_dir and os.access(data_dir, os.W_OK):
        ready = data_sets.prepare(name, data_dir, offline=True)
    if ready is not None:
        yield ready
        return
    try:
        folder = tempfile.mkdtemp(prefix="bench-data.")
    except OSError as error:
        raise BenchError(f"there is no data in {data_dir} and no temporary folder to make it in: {error}") from error
    try:
        yield data_sets.prepare(name, folder, offline=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

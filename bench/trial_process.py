"""One run, from the start of the process to its record."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Callable

from bench import code_digest, data_sets, evidence, record, torch_feature_checks
from bench.errors import BenchError, RunError, SkipError
from bench.evidence import machine
from bench.evidence.reading import attempt
from bench.gate import Gate
from bench.options import Options
from bench.parallel import device_and_learning_rate, launch, observed

if TYPE_CHECKING:
    from bench.parallel.node_coordination import Node
    from bench.parallel.rank_member import Member
    from bench.rank_and_device import Place

#: Parts of a record that a skipped workload does not have.
_MEASURED = ("data", "timing", "metrics", "result", "step_thread")


def run(
    options: Options, data_dir: str | None, member: Member | None = None, node: Node | None = None,
    gate: str | None = None, look_s: float | None = None, keep: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any] | None:  # fmt: skip
    """Run the workload and return its record; ``data_dir`` may be read-only, or None for a temporary one.

    ``member`` is this process's part in a job of several (``bench.parallel.rank_member``), or None for the process that
    starts the job and gets its record. ``node`` is this machine's part in a job on several machines: all but the first
    get None. ``gate`` is the folder of the gate for an interleaved run. ``look_s`` makes it a steady-state run of that
    many seconds. ``keep`` receives the record of an interleaved trial whose process goes on.
    """
    if gate and device_and_learning_rate.has_ranks(options):
        raise BenchError("--gate: a workload of several processes takes no turns")
    if look_s is not None and (gate or device_and_learning_rate.has_ranks(options)):
        raise BenchError("--look: a long look is at one process that takes no turns")
    if member is None and device_and_learning_rate.has_ranks(options):
        return launch.run(options, data_dir, node)
    early_evidence = evidence.before_torch()
    import_ns = _import_torch()
    affinity_after = attempt(machine.affinity)
    workload = {"digest": code_digest.options_digest(options), "options": options}
    document = dict(record.frame(), workload=workload, skipped=None)
    place: Place | None = None

    def finish(measured: dict[str, Any]) -> dict[str, Any]:
        steal_ticks = measured.pop("steal_ticks", None)
        document.update(measured, evidence=evidence.collect(early_evidence, affinity_after, steal_ticks))
        if device_and_learning_rate.needs_parallel_section(options):
            document["evidence"]["parallel"] = observed.evidence(options, place)
            document.update({"rank": member.facts()} if member else {})
        return document

    try:
        resolved_options = device_and_learning_rate.resolve_device(options)
        torch_feature_checks.check(resolved_options)
        with (
            _data(resolved_options, data_dir) as prepared,
            _placed(resolved_options, member, early_evidence["affinity_before"]) as place,
        ):
            from bench import workload_measurement

            measured = workload_measurement.measure(
                resolved_options, prepared, place, import_ns, Gate(gate) if gate else None, look_s,
                lambda part: keep(finish(part)),
            )  # fmt: skip
        if "evidence" not in document:
            finish(measured)
    except SkipError as reason:
        finish(dict(dict.fromkeys(_MEASURED), skipped=str(reason)))
    return document


def _placed(options: Options, member: Member | None, cpus: Sequence[int] | None) -> AbstractContextManager[Place]:
    """Return the context that yields this process's Place."""
    if member is not None:
        return member.joined(options, cpus)
    from bench import devices
    from bench.rank_and_device import Place

    return nullcontext(Place(devices.open_device(device_and_learning_rate.device(options)), cpus=cpus))


def evidence_only() -> dict[str, Any]:
    """Return a record that contains only evidence."""
    early_evidence = evidence.before_torch()
    _import_torch()
    affinity_after = attempt(machine.affinity)
    work_buffer = torch_feature_checks.compute_tensor_in_parallel()
    document = dict(record.frame(), evidence=evidence.collect(early_evidence, affinity_after))
    del work_buffer
    return document


def _import_torch() -> int:
    start = time.perf_counter_ns()
    try:
        import torch  # noqa: F401 - its cost is what is measured
    except (ImportError, OSError) as error:  # OSError: torch itself loads a library by its name
        lacks = "libcuda" in str(error) and not glob.glob("/dev/nvidia[0-9]*")
        why = "; this is a PyTorch for CUDA, and this machine shows no GPU (no /dev/nvidia0)" if lacks else ""
        raise RunError(f"this Python cannot import torch: {error}{why}") from error
    return time.perf_counter_ns() - start


@contextmanager
def _data(options: Options, data_dir: str | None) -> Iterator[data_sets.Prepared | None]:
    """Yield the data set, found or prepared in ``data_dir``, otherwise in a temporary folder; None for a collective."""
    name, prepared = options["data"], None
    if data_dir and options["collective"] == "none":
        prepared = data_sets.find_set_or_stand_in(name, data_dir)
        if prepared is None and os.access(data_dir, os.W_OK):
            prepared = data_sets.prepare(name, data_dir, offline=True)
    if prepared is not None or options["collective"] != "none":
        yield prepared
        return
    try:
        folder = tempfile.mkdtemp(prefix=f"bench-data.{os.getpid()}.")
    except OSError as error:
        raise BenchError(f"there is no data in {data_dir} and no temporary folder to make it in: {error}") from error
    try:
        yield data_sets.prepare(name, folder, offline=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

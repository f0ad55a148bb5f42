"""Identify the work of a trial; trials with equal work have equal identities."""

from __future__ import annotations

import json

from envmatrix.evidence.trial_record import Record

#: Options that change only how the same steps are computed: device, processes, compilation, memory layout.
_METHOD_OPTIONS = frozenset({
    "parallel", "processes", "nodes", "accumulation", "no_sync", "micro_batches", "port", "collective_timeout_s",
    "device", "compile", "channels_last", "cuda_graphs", "cudnn_benchmark",
})  # fmt: skip


def work_identity(record: Record) -> str | None:
    """Return the identity of a trial's work; None if the record lacks it.

    This is the digest of all options. If ``verify_steps`` confirmed that the first losses equal those of one process,
    options on how steps are computed do not matter. The identity is then the text of the other options.
    """
    work = record.workload
    if work is None:
        return None
    if not (work.options and record.result and record.result.equality):
        return work.digest
    return json.dumps(
        {name: value for name, value in work.options.items() if name not in _METHOD_OPTIONS}, sort_keys=True
    )

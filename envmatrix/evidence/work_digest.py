"""What a trial did, as a text that equal work shares."""

from __future__ import annotations

import json

from envmatrix.evidence.record import Record

#: Options of how the very same steps are computed: where, in how many processes and parts, compiled, laid out.
_METHOD_OPTIONS = frozenset({
    "parallel", "processes", "nodes", "accumulation", "no_sync", "micro_batches", "port", "collective_timeout_s",
    "device", "compile", "channels_last", "cuda_graphs", "cudnn_benchmark",
})  # fmt: skip


def work_identity(record: Record) -> str | None:
    """Return what tells the work of a trial from another's, None where the record does not say.

    That is the digest of all options. But where the losses of the first steps were those of one plain process
    (``verify_steps``; a trial breaks where they are not), how they were computed makes no other work of them, and what
    remains are the other options.
    """
    work = record.workload
    if work is None:
        return None
    if not (work.options and record.result and record.result.equality):
        return work.digest
    return json.dumps(
        {name: value for name, value in work.options.items() if name not in _METHOD_OPTIONS}, sort_keys=True
    )

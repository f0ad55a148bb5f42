"""What an environment amounted to inside a process: the evidence that its settings decide, and nothing that varies."""

from __future__ import annotations

from collections.abc import Iterator

from envmatrix.record.evidence import Evidence
from envmatrix.record.part import Part

#: Parts that hold what settings decide, with what in them is another in every process or on every machine.
_VARYING = {
    "openmp": ("path", "workers", "loaded"),
    "malloc": ("path", "arenas"),
    "blas": ("path",),
    "torch": ("path", "git", "debug", "build"),
    "onednn": (),
    "inductor": ("graphs", "autotuned"),
    "xla": ("compile_count", "compile_s", "execute_count", "fallbacks"),
    "parallel": ("ranks",),
}


def settled(evidence: Evidence) -> str:
    """Return one text for what the settings amounted to: two processes with the same text had the same environment."""
    return repr(list(_parts(evidence)))


def _parts(evidence: Evidence) -> Iterator[object]:
    for name, varying in _VARYING.items():
        part = getattr(evidence, name)
        if isinstance(part, Part):
            yield name, [(key, value) for key, value in vars(part).items() if key not in varying]
    if evidence.openmp:
        yield sorted(evidence.openmp.workers or ())
    if evidence.cpu:
        yield evidence.cpu.affinity_before, evidence.cpu.affinity_end, sorted(evidence.cpu.thread_affinity or ())
    if evidence.memory:
        memory = evidence.memory
        yield memory.thp_process, memory.policy, memory.nodes_allowed, (memory.huge_pages_bytes or 0) > 0
    if evidence.cuda:
        yield evidence.cuda.settings
    if evidence.collectives:
        yield evidence.collectives.nccl_version, evidence.collectives.hidden_settings

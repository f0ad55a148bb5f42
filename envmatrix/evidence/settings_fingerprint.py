"""Compare the environments of processes by the evidence that depends on settings, without what varies by process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from envmatrix.evidence.evidence_models import Evidence, Malloc
from envmatrix.evidence.model_base import Part, once_for_each

#: Parts with evidence that depends on settings, and their fields that vary between processes or machines.
_VARYING = {
    "openmp": ("path", "workers", "loaded"),
    "malloc": ("path", "arenas", "options"),
    "blas": ("path",),
    "torch": ("path", "git", "debug", "build"),
    "onednn": (),
    "inductor": ("graphs", "autotuned"),
    "xla": ("compile_count", "compile_s", "execute_count", "fallbacks"),
    "parallel": ("ranks",),
}
_HEAP_LIMIT_OPTIONS = ("arena_max", "MALLOC_ARENA_MAX")


def settled(evidence: Evidence) -> str:
    """Return a text of the settings in effect: processes with equal texts had the same environment."""
    return repr(list(_deciding_parts(evidence)))


def _deciding_parts(evidence: Evidence) -> Iterator[object]:
    for name, varying in _VARYING.items():
        part = getattr(evidence, name)
        if isinstance(part, Part):
            yield name, _decided(part, varying)
    if evidence.malloc:
        yield from _allocator_settings(evidence.malloc)
    if evidence.openmp:
        yield sorted(evidence.openmp.workers or ())
    if evidence.cpu:
        yield evidence.cpu.affinity_before, evidence.cpu.affinity_end, sorted(evidence.cpu.thread_affinity or ())
    if evidence.memory:
        memory = evidence.memory
        # If huge pages are only given on request, refusing them has no effect.
        refused = memory.thp_process if memory.thp == "always" or memory.huge_pages_bytes is None else None
        yield refused, memory.policy, memory.nodes_allowed, (memory.huge_pages_bytes or 0) > 0
    system, group = evidence.system, evidence.sandbox and evidence.sandbox.cgroup
    yield system and (system.python, system.gil, system.jit)
    yield group and group.cpu_limit
    if evidence.cuda:
        yield evidence.cuda.settings and _decided(evidence.cuda.settings, ())
    if evidence.packages:
        yield sorted(evidence.packages.items())
    if evidence.collectives:
        yield evidence.collectives.nccl_version, evidence.collectives.hidden_settings


@once_for_each
def _decided(part: Part, varying: tuple[str, ...]) -> str:
    """Return a digest of what is in a part, less what is another in every process."""
    decided = [(key, value) for key, value in vars(part).items() if key not in varying]
    return hashlib.sha256(repr(decided).encode(errors="replace")).hexdigest()


def _allocator_settings(malloc: Malloc) -> Iterator[object]:
    """Yield the allocator's options, and whether it has one heap, which makes a limit on heaps ineffective."""
    single_heap = malloc.arenas == 1
    yield (
        single_heap,
        [
            (key, value)
            for key, value in (malloc.options or {}).items()
            if not (single_heap and key in _HEAP_LIMIT_OPTIONS)
        ],
    )

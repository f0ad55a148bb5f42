"""What an environment amounted to inside a process: the evidence that its settings decide, and nothing that varies."""

from __future__ import annotations

from collections.abc import Iterator

from envmatrix.evidence.base import Part
from envmatrix.evidence.evidence import Evidence, Malloc

#: Parts that hold what settings decide, with what in them is another in every process or on every machine.
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
    """Return one text for what the settings amounted to: two processes with the same text had the same environment."""
    return repr(list(_deciding_parts(evidence)))


def _deciding_parts(evidence: Evidence) -> Iterator[object]:
    for name, varying in _VARYING.items():
        part = getattr(evidence, name)
        if isinstance(part, Part):
            yield name, [(key, value) for key, value in vars(part).items() if key not in varying]
    if evidence.malloc:
        yield from _allocator_settings(evidence.malloc)
    if evidence.openmp:
        yield sorted(evidence.openmp.workers or ())
    if evidence.cpu:
        yield evidence.cpu.affinity_before, evidence.cpu.affinity_end, sorted(evidence.cpu.thread_affinity or ())
    if evidence.memory:
        memory = evidence.memory
        # Where nobody gets huge pages who does not ask for them, to be refused them is nothing.
        refused = memory.thp_process if memory.thp == "always" or memory.huge_pages_bytes is None else None
        yield refused, memory.policy, memory.nodes_allowed, (memory.huge_pages_bytes or 0) > 0
    system, group = evidence.system, evidence.sandbox and evidence.sandbox.cgroup
    yield system and (system.python, system.gil, system.jit)
    yield group and group.cpu_limit
    if evidence.cuda:
        yield evidence.cuda.settings
    if evidence.packages:
        yield sorted(evidence.packages.items())
    if evidence.collectives:
        yield evidence.collectives.nccl_version, evidence.collectives.hidden_settings


def _allocator_settings(malloc: Malloc) -> Iterator[object]:
    """Yield the allocator's options, and whether it has one heap: at most one is nothing where there would be one."""
    single_heap = malloc.arenas == 1
    yield (
        single_heap,
        [
            (key, value)
            for key, value in (malloc.options or {}).items()
            if not (single_heap and key in _HEAP_LIMIT_OPTIONS)
        ],
    )

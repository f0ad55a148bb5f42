"""Texts of a trial's evidence that are counted, computed once for all trials that share its parts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from envmatrix.evidence.base import Part
from envmatrix.evidence.evidence import Evidence, System
from envmatrix.evidence.settings_in_effect import settled

#: Evidence shown in reports, as dotted paths in the record's ``evidence``.
EVIDENCE = (
    "openmp.library", "openmp.version", "openmp.threads", "openmp.blocktime", "openmp.sleeps", "openmp.affinity",
    "malloc.library", "malloc.version", "blas.library", "torch.version", "torch.threads", "torch.cpu_capability",
    "onednn.isa", "onednn.implementation", "cpu.model", "cpu.affinity_after", "cpu.governor", "memory.thp",
    "system.kernel", "system.libc", "system.python",
)  # fmt: skip
#: Evidence about the machine, independent of the environment.
_MACHINE = (
    "system.kernel",
    "cpu.architecture",
    "cpu.model",
    "cpu.flags",
    "memory.numa_nodes",
    "memory.total_bytes",
)
#: Parts of the evidence, and values of its system, that do not differ between any two processes.
_PARTS = tuple(sorted(frozenset(Evidence.model_fields) - {"system", "variables", "programs"}))
_SYSTEM = tuple(sorted(frozenset(System.model_fields) - {"stops", "uptime_s", "load_1m", "steal_ticks", "mhz"}))
_read_parts, _read_system = attrgetter(*_PARTS), attrgetter(*_SYSTEM)
_NO_SYSTEM = System()
_MAX_KNOWN = 256
#: Pairs of what a text is about, and the text.
Texts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class EvidenceTexts:
    """The texts of one evidence: its settings in effect, and texts ``shown`` and about the ``machine`` by path.

    They are compared by identity, as they are long, and usually read once for all trials that share them.
    """

    settled: str
    shown: Texts
    machine: Texts


class EvidenceTextReader:
    """Reads the texts of evidence, and keeps them for evidence that shares its parts (``LineReader``)."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[Evidence, EvidenceTexts]] = {}

    def read(self, evidence: Evidence) -> EvidenceTexts:
        """Return the texts of ``evidence``, which do not depend on its varying parts."""
        system, parts = _read_system(evidence.system or _NO_SYSTEM), _read_parts(evidence)
        key = (*system, *map(id, parts))
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            lasting = Evidence.model_construct(
                **dict(zip(_PARTS, parts, strict=True)),
                system=System.model_construct(**dict(zip(_SYSTEM, system, strict=True))),
            )
            self._known[key] = lasting, _read_texts(lasting)  # the parts are kept, so that no other gets their identity
        return self._known[key][1]


def _read_texts(evidence: Evidence) -> EvidenceTexts:
    return EvidenceTexts(
        settled(evidence),
        tuple(_texts_at(evidence, EVIDENCE, as_text)),
        tuple(_texts_at(evidence, _MACHINE, json.dumps)),
    )


def as_text(value: object) -> str:
    """Return a value of a record as text."""
    return value if isinstance(value, str) else json.dumps(value)


def _texts_at(
    evidence: Evidence, paths: tuple[str, ...], to_text: Callable[[object], str]
) -> Iterator[tuple[str, str]]:
    """Yield each of the ``paths`` with a known value, and its text."""
    for part, part_paths in itertools.groupby(paths, lambda path: path.partition(".")[0]):
        values: Part | None = getattr(evidence, part, None)
        for path in part_paths:
            value = getattr(values, path.partition(".")[2], None)
            if value is not None:
                yield path, to_text(value)

"""Texts of a trial's evidence that are counted, computed once for all trials that share its parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from envmatrix.evidence import notices
from envmatrix.evidence.evidence_models import Evidence
from envmatrix.evidence.model_base import once_for_each
from envmatrix.evidence.settings_fingerprint import settled

#: Evidence shown in reports, as dotted paths in the record's ``evidence``.
EVIDENCE = (
    "openmp.library", "openmp.version", "openmp.threads", "openmp.blocktime", "openmp.sleeps", "openmp.affinity",
    "malloc.library", "malloc.version", "blas.library", "torch.version", "torch.threads", "torch.cpu_capability",
    "onednn.isa", "onednn.implementation", "cpu.model", "cpu.affinity_after", "cpu.governor", "memory.thp",
    "system.kernel", "system.libc", "system.python",
)  # fmt: skip
#: Evidence about the machine, independent of the environment.
_MACHINE = (
    "system.kernel", "cpu.architecture", "cpu.model", "cpu.flags", "memory.numa_nodes", "memory.total_bytes",
)  # fmt: skip
#: Parts of the evidence with texts; the others may differ between any two trials.
_PARTS = tuple(sorted(frozenset(Evidence.model_fields) - {"variables", "programs", "unseen_share"}))
_read_parts = attrgetter(*_PARTS)
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


@dataclass(frozen=True, eq=False)
class EvidenceFacts:
    """What is counted of one evidence: its texts, and notices about work ``elsewhere``, a missing GPU and oddities.

    They are compared by identity, as ``EvidenceTexts`` are.
    """

    texts: EvidenceTexts
    elsewhere: tuple[str, ...]
    without_gpu: tuple[str, ...]
    oddities: tuple[str, ...]


@once_for_each
def evidence_facts(evidence: Evidence) -> EvidenceFacts:
    """Return the facts of ``evidence``, once for all trials that share it (``LineReader``)."""
    return EvidenceFacts(
        _texts(*_read_parts(evidence)),
        tuple(notices.work_outside_timing_notices(evidence)),
        tuple(notices.gpu_not_found_notice(evidence)),
        tuple(notices.preload_openmp_and_binding_problems(evidence)),
    )


@once_for_each
def _texts(*parts: Any) -> EvidenceTexts:
    evidence = Evidence.model_construct(**dict(zip(_PARTS, parts, strict=True)))
    shown, machine = _texts_at(evidence, EVIDENCE, as_text), _texts_at(evidence, _MACHINE, json.dumps)
    return EvidenceTexts(settled(evidence), shown, machine)


def as_text(value: object) -> str:
    """Return a value of a record as text."""
    return value if isinstance(value, str) else json.dumps(value)


def _texts_at(evidence: Evidence, paths: tuple[str, ...], to_text: Callable[[object], str]) -> Texts:
    """Return each of the ``paths`` with a known value, and its text."""
    names = [path.partition(".") for path in paths]
    values = [getattr(getattr(evidence, part), name, None) for part, _, name in names]
    return tuple((path, to_text(value)) for path, value in zip(paths, values, strict=True) if value is not None)

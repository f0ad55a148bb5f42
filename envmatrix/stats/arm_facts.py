"""What the trials of one arm said beside their numbers, each different text with a count."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from envmatrix.evidence import notices
from envmatrix.evidence.evidence import Evidence
from envmatrix.evidence.record import Profile, Record
from envmatrix.evidence.settings_in_effect import settled
from envmatrix.evidence.work_digest import work_identity
from envmatrix.results import Reading, Trial
from envmatrix.stats.metrics import finite_or_nan

#: Evidence shown in reports, as dotted paths into the record's ``evidence``.
EVIDENCE = (
    "openmp.library", "openmp.version", "openmp.threads", "openmp.blocktime", "openmp.affinity",
    "malloc.library", "malloc.version", "blas.library", "torch.version", "torch.threads",
    "torch.cpu_capability", "cpu.model", "cpu.affinity_after", "cpu.governor", "memory.thp", "system.kernel",
    "system.libc", "system.python",
)  # fmt: skip
#: The same with the part of the evidence and its field: a general search of paths would take most of the time.
_EVIDENCE = tuple((path, *path.split(".")) for path in EVIDENCE)
_MOST_DIFFERENT = 5


@dataclass
class ArmFacts:
    """What the trials of one arm said beside their numbers: each different text and how often.

    ``longest_s`` is how long the longest of all its trials took, those that broke too; ``in_turns`` counts those that
    took turns, with at most ``together`` alive, ``in_waves`` those of them in groups that want of memory made smaller,
    ``in_one_go`` those that lived beside others and took all of their steps in one turn.
    ``tolerances`` maps each check of a program of the user's own to what it allows, a fraction.
    ``operators`` maps an operator to its own seconds a step, one figure for every profiled trial it ran in.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    unproven: Counter[str] = field(default_factory=Counter)
    elsewhere: Counter[str] = field(default_factory=Counter)
    without_gpu: Counter[str] = field(default_factory=Counter)
    settled: Counter[str] = field(default_factory=Counter)
    oddities: Counter[str] = field(default_factory=Counter)
    evidence: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    data: Counter[str] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    tolerances: dict[str, float] = field(default_factory=dict)
    operators: dict[str, list[float]] = field(default_factory=dict)
    stand_in: int = 0
    longest_s: float = 0.0
    in_turns: int = 0
    in_one_go: int = 0
    together: int = 0
    in_waves: int = 0


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def count_text(counter: Counter[str], text: str) -> None:
    """Count a text; from the sixth different one on they are counted together, as '...'."""
    if text in counter or len(counter) < _MOST_DIFFERENT:
        counter[text] += 1
    else:
        counter["..."] += 1


def note_trial(facts: ArmFacts, trial: Reading | Trial, record: Record) -> None:
    """Count what a trial that ended well said of its data, work, settings and evidence."""
    if record.data:
        count_text(facts.data, _as_text(record.data.name))
        facts.stand_in += record.data.stand_in is True
    count_text(facts.work, _as_text(work_identity(record)))
    _note_operators(facts, record.profile)
    if record.evidence:
        count_text(facts.settled, settled(record.evidence))
    evidence = record.evidence or Evidence()
    for counts, texts in (
        (facts.unproven, trial.unproven),
        (facts.elsewhere, notices.work_elsewhere(evidence)),
        (facts.without_gpu, notices.missing_gpu(evidence)),
        (facts.oddities, notices.process_oddities(evidence)),
    ):
        for text in texts:
            count_text(counts, text)
    for path, part, name in _EVIDENCE:
        value = getattr(getattr(record.evidence, part, None), name, None)
        if value is not None:
            count_text(facts.evidence[path], _as_text(value))


def _note_operators(facts: ArmFacts, profile: Profile | None) -> None:
    steps = finite_or_nan(profile.steps) if profile else 0.0
    if profile is None or not steps > 0:
        return
    for operator in profile.operators or ():
        seconds = finite_or_nan(operator.self_ns) / 1e9 / steps
        if seconds > 0:
            facts.operators.setdefault(_as_text(operator.name), []).append(seconds)

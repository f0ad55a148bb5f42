"""Non-numeric facts of the trials of one arm: each different text with a count."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from envmatrix.evidence import notices
from envmatrix.evidence.evidence import Evidence
from envmatrix.evidence.record import GpuTime, Profile, Record
from envmatrix.evidence.work_digest import work_identity
from envmatrix.results import Reading, Trial
from envmatrix.stats.evidence_texts import EvidenceTexts, as_text
from envmatrix.stats.metrics import finite_or_nan

_MOST_DIFFERENT = 5
_NO_EVIDENCE = Evidence()


@dataclass
class ArmFacts:
    """Facts from the trials of one arm: each different text and how often it occurred.

    ``longest_s`` is the duration of the longest trial, failed ones included. ``in_turns`` counts interleaved trials,
    with at most ``together`` alive; ``in_waves`` counts those in groups split for lack of memory. ``in_one_go`` counts
    uninterrupted trials that ran in a group. ``tolerances`` maps each check of a user's program to the fraction it
    allows. ``later_failed``: why processes ended too early after their trials. ``operators`` maps an operator to its
    self time in seconds per step, one number per profiled trial it ran in; ``gpu`` does so for the parts of a GPU's
    time.
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
    later_failed: Counter[str] = field(default_factory=Counter)
    operators: dict[str, list[float]] = field(default_factory=dict)
    gpu: dict[str, list[float]] = field(default_factory=dict)
    stand_in: int = 0
    longest_s: float = 0.0
    in_turns: int = 0
    in_one_go: int = 0
    together: int = 0
    in_waves: int = 0


def count_text(counter: Counter[str], text: str, times: int = 1) -> None:
    """Count a text; all texts after the first five different ones are counted together as '...'."""
    if text in counter or len(counter) < _MOST_DIFFERENT:
        counter[text] += times
    else:
        counter["..."] += times


def note_trial(facts: ArmFacts, trial: Reading | Trial, record: Record) -> None:
    """Count the data, work and notices of a successful trial."""
    if record.data:
        count_text(facts.data, as_text(record.data.name))
        facts.stand_in += record.data.stand_in is True
    count_text(facts.work, as_text(work_identity(record)))
    _note_profile(facts, record.profile)
    evidence = record.evidence or _NO_EVIDENCE
    for counts, notes in (
        (facts.unproven, trial.unproven),
        (facts.elsewhere, notices.work_elsewhere(evidence)),
        (facts.without_gpu, notices.missing_gpu(evidence)),
        (facts.oddities, notices.process_oddities(evidence)),
    ):
        for note in notes:
            count_text(counts, note)


def note_texts(facts: ArmFacts, texts: EvidenceTexts, trials: int) -> None:
    """Count the settings and evidence of successful trials, which have the same ``texts``."""
    count_text(facts.settled, texts.settled, trials)
    for path, text in texts.shown:
        count_text(facts.evidence[path], text, trials)


def _note_profile(facts: ArmFacts, profile: Profile | None) -> None:
    steps = finite_or_nan(profile.steps) if profile else 0.0
    if profile is None or not steps > 0:
        return
    timed = [(facts.operators, as_text(operator.name), operator.self_ns) for operator in profile.operators or ()]
    timed += [(facts.gpu, name, nanoseconds) for name, nanoseconds in vars(profile.gpu or GpuTime()).items()]
    for times, name, nanoseconds in timed:
        seconds = finite_or_nan(nanoseconds) / 1e9 / steps
        if seconds > 0:
            times.setdefault(name, []).append(seconds)

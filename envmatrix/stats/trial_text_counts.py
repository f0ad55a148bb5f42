"""Non-numeric facts of the trials of one arm: each different text with a count."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from envmatrix.evidence.trial_record import GpuTime, Profile, Record
from envmatrix.evidence.work_digest import work_identity
from envmatrix.results import Reading, Trial
from envmatrix.stats.evidence_text_cache import EvidenceFacts, as_text, evidence_facts
from envmatrix.stats.metrics import finite_or_nan

_MOST_DIFFERENT = 5


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


class Counted(NamedTuple):
    """What is counted of a successful trial."""

    evidence: EvidenceFacts | None
    data: str | None
    stand_in: bool
    work: str | None
    unproven: tuple[str, ...]


def counted(trial: Reading | Trial, record: Record) -> Counted:
    """Return what ``note_trials`` counts of a successful trial."""
    data = record.data
    return Counted(
        evidence_facts(record.evidence) if record.evidence else None,
        as_text(data.name) if data else None,
        data is not None and data.stand_in is True,
        work_identity(record),
        trial.unproven,
    )


def note_trials(facts: ArmFacts, found: Counted, trials: int) -> None:
    """Count the data, work, settings, evidence and notices of successful trials that have the same."""
    if found.data is not None:
        count_text(facts.data, found.data, trials)
    facts.stand_in += trials * found.stand_in
    count_text(facts.work, as_text(found.work), trials)
    for note in found.unproven:
        count_text(facts.unproven, note, trials)
    evidence = found.evidence
    if evidence is None:
        return
    for counts, notes in (
        (facts.elsewhere, evidence.elsewhere),
        (facts.without_gpu, evidence.without_gpu),
        (facts.oddities, evidence.oddities),
    ):
        for note in notes:
            count_text(counts, note, trials)
    count_text(facts.settled, evidence.texts.settled, trials)
    for path, text in evidence.texts.shown:
        count_text(facts.evidence[path], text, trials)


def note_profile(facts: ArmFacts, profile: Profile | None) -> None:
    """Add the times of a trial's profile."""
    steps = finite_or_nan(profile.steps) if profile else 0.0
    if profile is None or not steps > 0:
        return
    timed = [(facts.operators, as_text(operator.name), operator.self_ns) for operator in profile.operators or ()]
    timed += [(facts.gpu, name, nanoseconds) for name, nanoseconds in vars(profile.gpu or GpuTime()).items()]
    for times, name, nanoseconds in timed:
        seconds = finite_or_nan(nanoseconds) / 1e9 / steps
        if seconds > 0:
            times.setdefault(name, []).append(seconds)

"""A warning of a report, with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from envmatrix.plan import shown_name
from envmatrix.results import Run
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.measurements import Measurements

#: What a check finds: (subject, text), and the remedy if it depends on the run.
Findings: TypeAlias = Iterator[tuple[str, ...]]


class WarningKind(str, Enum):
    """The kinds of warnings, the gravest first. The value is the word used in summary.json."""

    NOTHING_MEASURED = "nothing-measured"
    NO_REFERENCE = "no-reference"
    FAILED = "failed-trials"
    INVALID = "invalid-trials"
    UNEQUAL_WORK = "unequal-work"
    NO_NUMBER = "no-usable-number"
    CONTROL_OFF = "control-off-1.0"
    DISTURBED = "disturbed"
    QUOTA = "cpu-quota"
    UNPROVEN = "unproven-environment"
    ELSEWHERE = "work-elsewhere"
    NO_GPU = "no-gpu"
    TOO_FEW_BLOCKS = "too-few-blocks"
    SKIPPED = "skipped-environment"
    MISSING = "missing-trials"
    MIXED_HOSTS = "mixed-hosts"
    OTHER_LOAD = "other-load"
    STEAL = "steal-time"
    SLOW_TRIALS = "slow-trials"
    UNCHECKED = "equal-work-unchecked"
    STAND_IN = "stand-in-data"
    ODDITY = "odd-process"
    SHELL = "shell-variables"
    TIMES_WARM_UP = "times-the-warm-up"
    NOT_STEADY = "not-steady"
    COLD_TURNS = "cold-turns"
    SHORT_RUN = "short-run"
    DRIFT = "drift"
    FREQUENCY = "frequency-change"
    UNVERIFIED = "claims-not-verifiable"
    AFTER_LEAVING = "trials-after-the-race"


@dataclass(frozen=True)
class RunWarning:
    """One warning: what it is about, what was seen, and what to do.

    ``ending`` is left out of names shown to people, if all arms share it.
    """

    kind: WarningKind
    subject: str
    text: str
    remedy: str
    ending: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of the subject, as shown to people."""
        return tuple(shown_name(name.removesuffix(self.ending)) for name in self.subject.split(", "))

    @property
    def about(self) -> str:
        """The subject, as shown to people."""
        return ", ".join(self.names)


class Check(NamedTuple):
    """One check of a run: the kind of its warnings, and their remedy if it is always the same."""

    kind: WarningKind
    find: Callable[[Run, Measurements, Analysis], Findings]
    remedy: str = ""

    def warnings(self, run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
        """Yield the warnings of this check."""
        for subject, text, *remedy in self.find(run, measured, analysis):
            yield RunWarning(self.kind, subject, text, *(remedy or [self.remedy]))


def one_per_cause(warnings: Iterable[RunWarning], ending: str = "") -> tuple[RunWarning, ...]:
    """Return the warnings, the gravest kinds first; those that differ only in their subject become one."""
    subjects: dict[tuple[WarningKind, str, str], list[str]] = {}
    for item in warnings:
        subjects.setdefault((item.kind, item.text, item.remedy), []).append(item.subject)
    order = list(WarningKind)
    merged = (
        RunWarning(kind, ", ".join(names), text, remedy, ending) for (kind, text, remedy), names in subjects.items()
    )
    return tuple(sorted(merged, key=lambda item: order.index(item.kind)))

"""A warning of a report, with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from envmatrix.plan import shown_name
from envmatrix.report.formatting import list_names
from envmatrix.results import Run
from envmatrix.stats.effect_estimation import Analysis
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

    ``ending`` is left out of names shown to people, if all arms share it. ``names_each``: the text names each subject.
    """

    kind: WarningKind
    subject: str
    text: str
    remedy: str
    ending: str = ""
    names_each: bool = field(default=False, kw_only=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of the subject, as shown to people."""
        return tuple(shown_name(name.removesuffix(self.ending)) for name in self.subject.split(", "))

    @property
    def about(self) -> str:
        """The subject, as shown to people."""
        return ", ".join(self.names)

    @property
    def sentence(self) -> str:
        """What was seen, with its subject."""
        return self.text if self.names_each else f"{list_names(self.names)}: {self.text}"


class Check(NamedTuple):
    """One check of a run: the kind of its warnings, and their remedy if it is always the same."""

    kind: WarningKind
    find: Callable[[Run, Measurements, Analysis], Findings]
    remedy: str = ""

    def warnings(self, run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
        """Yield the warnings of this check."""
        for subject, text, *remedy in self.find(run, measured, analysis):
            yield RunWarning(self.kind, subject, text, *(remedy or [self.remedy]))


def merge_warnings_by_cause(warnings: Iterable[RunWarning], ending: str = "") -> tuple[RunWarning, ...]:
    """Return the warnings, the gravest kinds first; those of one kind with one remedy become one."""
    causes: dict[tuple[WarningKind, str], dict[str, list[str]]] = {}
    for item in warnings:
        texts = causes.setdefault((item.kind, item.remedy), {})
        texts.setdefault(item.text, []).append(item.subject)
    order = list(WarningKind)
    merged = (_merge(kind, remedy, texts, ending) for (kind, remedy), texts in causes.items())
    return tuple(sorted(merged, key=lambda item: order.index(item.kind)))


def _merge(kind: WarningKind, remedy: str, texts: Mapping[str, Sequence[str]], ending: str) -> RunWarning:
    """Return one warning for ``texts`` -> their subjects; with several texts, each names its own."""
    single = [RunWarning(kind, ", ".join(names), text, remedy, ending) for text, names in texts.items()]
    if len(single) == 1:
        return single[0]
    subjects = dict.fromkeys(name for names in texts.values() for name in names)
    text = "; ".join(f"{item.about}: {item.text}" for item in single)
    return RunWarning(kind, ", ".join(subjects), text, remedy, ending, names_each=True)

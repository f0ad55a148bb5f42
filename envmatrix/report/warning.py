"""A warning as a value: what a reader must know before acting on a report, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from envmatrix.plan import shown_name


class WarningKind(str, Enum):
    """What can be wrong. The value is the stable word of summary.json."""

    NOTHING_MEASURED = "nothing-measured"
    NO_REFERENCE = "no-reference"
    TOO_FEW_BLOCKS = "too-few-blocks"
    CONTROL_OFF = "control-off-1.0"
    UNEQUAL_WORK = "unequal-work"
    UNCHECKED = "equal-work-unchecked"
    STAND_IN = "stand-in-data"
    NO_NUMBER = "no-usable-number"
    FAILED = "failed-trials"
    INVALID = "invalid-trials"
    SKIPPED = "skipped-environment"
    MIXED_HOSTS = "mixed-hosts"
    MISSING = "missing-trials"
    AFTER_LEAVING = "trials-after-the-race"
    DRIFT = "drift"
    DISTURBED = "disturbed"
    STEAL = "steal-time"
    QUOTA = "cpu-quota"
    OTHER_LOAD = "other-load"
    FREQUENCY = "frequency-change"
    SLOW_TRIALS = "slow-trials"
    SHORT_RUN = "short-run"
    UNVERIFIED = "claims-not-verifiable"
    NOT_STEADY = "not-steady"
    TIMES_WARM_UP = "times-the-warm-up"
    COLD_TURNS = "cold-turns"
    UNPROVEN = "unproven-environment"
    ODDITY = "odd-process"
    SHELL = "shell-variables"
    ELSEWHERE = "work-elsewhere"
    NO_GPU = "no-gpu"


@dataclass(frozen=True)
class RunWarning:
    """One warning: what it is about, what was seen, and what to do about it."""

    kind: WarningKind
    subject: str
    text: str
    remedy: str

    @property
    def about(self) -> str:
        """The subject as people read it."""
        return ", ".join(map(shown_name, self.subject.split(", ")))

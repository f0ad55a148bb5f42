"""What an effect is: a ratio with its simultaneous interval, p and verdict (see docs/statistics.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from envmatrix.stats.maxt import adjusted_p, critical_value
from envmatrix.stats.pairing import ratio_from_log

Verdict = Literal["faster", "slower", "same", "undecided"]
#: What is promised: all intervals of a family cover together in 95 of 100 runs.
CONFIDENCE = 0.95
#: What is computed, all looks at a run together: a run that ends as soon as its intervals are narrow ends more often
#: when they are narrow by luck, so that 95 % intervals cover 93 % (docs/statistics.md). 96.4 % intervals then keep the
#: promise.
ALL_ANALYSES_LEVEL = 0.964
#: How much of that error the first look may make; the rest is kept for a run that is resumed (``spending``).
FIRST_ANALYSIS_SHARE = 0.8
#: What is computed for a run that is read once.
LEVEL = 1.0 - (1.0 - ALL_ANALYSES_LEVEL) * FIRST_ANALYSIS_SHARE


class Flag:
    """Texts of ``Effect.flags``: what a reader must know before using the ratio."""

    UNEQUAL_WORK = "unequal-work"
    CHANGES_NUMERICS = "changes-numerics"
    STAND_IN = "stand-in-data"
    TOO_FEW_BLOCKS = "too-few-blocks"
    FAILED = "failed-trials"
    INVALID = "invalid-trials"
    FAILS_MORE = "fails-more"
    REFERENCE_FAILS_MORE = "reference-fails-more"
    INCOMPLETE = "incomplete-blocks"
    UNPROVEN = "unproven"
    NOT_IN_EFFECT = "not-in-effect"
    SLOW_TRIALS = "slow-trials"
    NO_OP = "no-op-here"
    CONTENDED = "cpu-contention"


@dataclass(frozen=True)
class Contended:
    """What CPU contention can have done to a ratio: without it ``low`` to ``high`` times as much (``contention``).

    ``shares``: of the time in which reference and environment waited for a CPU, None on a machine that was left alone.
    """

    low: float = 1.0
    high: float = 1.0
    shares: tuple[float, float] | None = None

    @property
    def inverted(self) -> Contended:
        """The same of the comparison turned round."""
        return Contended(1.0 / self.high, 1.0 / self.low, self.shares and (self.shares[1], self.shares[0]))


@dataclass(frozen=True)
class Effect:
    """One arm against its reference in one metric.

    ``ratio`` above 1 is always better: faster, or less memory. ``low`` and ``high`` bound the ratio
    simultaneously with all comparisons that share the reference; ``p`` is adjusted likewise. All three are
    None, and the verdict 'undecided', below the plan's ``min_blocks``; ``missing`` says how many complete
    blocks are lacking. ``ratio`` is None when no block has both trials. ``blocks`` counts the complete
    pairs, ``incomplete`` the blocks in which one of the two is absent. ``error`` is the standard error of the log
    ratio, worth that of ``units`` independent blocks. Where the arm or its reference has slow trials, ``usual`` is the
    ratio without them; interval, p and verdict hold for both ratios. ``worst`` is what ``low`` would be had every
    trial that broke been as slow as can be (None: none broke, or no interval), ``best`` what ``high`` would be had
    every trial of its reference that broke been so. ``withheld`` is the flag for which a verdict that the interval
    alone would have is 'undecided'; ``contended`` what CPU contention can have done to it.
    """

    workload: str
    environment: str
    engine: str
    reference: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict
    blocks: int
    flags: tuple[str, ...] = ()
    missing: int = 0
    incomplete: int = 0
    arm: str = ""
    spread: float | None = None
    notes: tuple[str, ...] = ()
    primary: bool = False
    worst: float | None = None
    best: float | None = None
    error: float | None = None
    units: int = 0
    usual: float | None = None
    withheld: str = ""
    contended: Contended = Contended()

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval as a fraction: 0.03 for a ratio known to 3 %."""
        if self.low is None or self.high is None or self.low <= 0:
            return None
        return math.sqrt(self.high / self.low) - 1.0

    @property
    def is_control(self) -> bool:
        """Whether this compares the baseline with its own second copy."""
        return self.environment == "control"


#: What bars an arm from being called the best.
DISQUALIFYING_FLAGS = frozenset({Flag.UNEQUAL_WORK, Flag.FAILS_MORE, Flag.UNPROVEN})


def may_be_best(effect: Effect) -> bool:
    """Whether an arm may be called the best.

    It did equal work, fails no more often than its reference, and was seen to be what its name says.
    """
    return not effect.is_control and DISQUALIFYING_FLAGS.isdisjoint(effect.flags)


def verdict_of(low: float, high: float, margin: float) -> Verdict:
    """Judge an interval: wholly inside 1/(1+margin)..(1+margin) is 'same', however narrow it is."""
    if 1.0 / (1.0 + margin) <= low and high <= 1.0 + margin:
        return "same"
    if low > 1.0:
        return "faster"
    return "slower" if high < 1.0 else "undecided"


def unless_contended(effect: Effect, contended: Contended, margin: float) -> Effect:
    """Take a verdict back that CPU contention could explain: it must hold for the whole of what that can have done."""
    found = replace(effect, contended=contended)
    if effect.low is None or effect.high is None or effect.verdict == "undecided":
        return found
    verdict = verdict_of(effect.low * contended.low, effect.high * contended.high, margin)
    return found if verdict == effect.verdict else withheld(found, Flag.CONTENDED)


def withheld(effect: Effect, flag: str) -> Effect:
    """Take a verdict back, for the reason that ``flag`` names."""
    return effect if effect.verdict == "undecided" else replace(effect, verdict="undecided", withheld=flag)


@dataclass(frozen=True)
class Conclusion:
    """What may be said of a mean log ratio: the interval as ratios, the adjusted p, the verdict."""

    low: float
    high: float
    p: float
    verdict: Verdict


def draw_conclusion(
    mean: float,
    error: float,
    units: int,
    comparisons: int,
    copies: int,
    level: float,
    margin: float,
    *,
    own: bool = False,
) -> Conclusion:
    """Judge the mean of paired log ratios, one of ``comparisons`` with ``copies`` of one reference.

    Its standard ``error`` is worth that of ``units`` independent blocks, and its ``own`` (else one that ``moderated``
    borrowed). p is below 1 - CONFIDENCE just when 1 is not in the interval.
    """
    reach = critical_value(units, comparisons, copies, level=level, own=own) * error
    t = mean / error if error > 0 else (math.inf if mean else 0.0)
    p = rescale_p_value(adjusted_p(t, units, comparisons, copies, own=own), level)
    low, high = ratio_from_log(mean - reach), ratio_from_log(mean + reach)
    return Conclusion(low, high, p, verdict_of(low, high, margin))


def rescale_p_value(p: float, level: float = LEVEL) -> float:
    """Return a p computed at ``level`` on the scale of what is promised, so that it agrees with the interval."""
    return min(1.0, p * (1.0 - CONFIDENCE) / (1.0 - level))

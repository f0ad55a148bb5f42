"""What the effects of a table show, in the words of its headline: who is faster, and why some that are get no name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from envmatrix.report.formatting import format_bounds, format_interval, format_ratio
from envmatrix.stats.contention import told_busy
from envmatrix.stats.effects import Effect, Flag, may_be_best
from envmatrix.stats.selection import Choice

#: Why an environment that is called faster is not named: what it lacks, and what is said of one and of several.
DISQUALIFICATION_TEXTS: Mapping[str, tuple[str, str, str]] = {
    Flag.FAILS_MORE: ("to fail no more often", "fails more often", "fail more often"),
    Flag.UNPROVEN: ("to be what its name says", "is unproven", "are unproven"),
    Flag.UNEQUAL_WORK: ("to do equal work", "did other work", "did other work"),
}

#: Why a verdict is withheld, in the few words that a row has room for.
WITHHELD: Mapping[str, str] = {
    Flag.SLOW_TRIALS: "slow trials",
    Flag.CONTENDED: "contention",
    Flag.REFERENCE_FAILS_MORE: "reference breaks more",
}
#: From here on what a control's interval leaves open is said where nothing is shown.
_NOISY = 1.25
#: A quota that was used up in more than this share of its periods is said first.
_HELD_BACK = 0.05


def reason(effect: Effect) -> str:
    """Return why a verdict is withheld, in a few words; '' if none is."""
    return WITHHELD.get(effect.withheld, effect.withheld)


def busy_machine(effects: Sequence[Effect], best: Effect | None, reference: str) -> str:
    """Return the beginning of an answer that was measured on a busy machine, '' on one that was left alone."""
    there = [one for one in effects if one.contended.shares]
    held = [one for one in there if one.withheld == Flag.CONTENDED]
    told = best if best else max(held or there, key=lambda one: one.ratio or 0.0, default=None)
    said = told_busy(told.contended, reference, told.environment) if told else ""
    return said[:1].upper() + said[1:]


def under_quota(found: tuple[float, float] | None) -> str:
    """Return the beginning of an answer that holds for a CPU quota, '' if none held trials back."""
    if found is None or found[1] <= _HELD_BACK:
        return ""
    return f"Measured under a CPU quota of {found[0]:g} CPUs, used up in {found[1]:.0%} of its periods. "


def without_contention(effect: Effect) -> str:
    """Return what the ratio can be on a machine that is left alone, '' where it was."""
    low, high, contended = effect.low, effect.high, effect.contended
    if low is None or high is None or contended.shares is None:
        return ""
    return f" On a quiet machine it can be {format_bounds(low * contended.low, high * contended.high)}."


def explained(effects: Sequence[Effect], as_fast: str) -> str:
    """Return which environments contention keeps from a verdict, and what to do; '' if none is."""
    held = [one for one in effects if one.withheld == Flag.CONTENDED]
    if not held:
        return ""
    most = max(held, key=lambda one: abs(math.log(one.ratio or 1.0)))
    more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
    return (
        f"{most.environment}{more} measured {format_ratio(most.ratio)} times {as_fast}, which that waiting can explain"
    )


def of_control(control: Effect | None, best: Effect | None, gain: float, reference: str) -> str:
    """Return what the control takes from an answer: it is off 1, or its interval is wider than what is claimed."""
    low, high = (control.low, control.high) if control else (None, None)
    if control is None or low is None or high is None or low <= 0:
        return ""
    if not low <= 1.0 <= high:
        return (
            f" But a second copy of {reference}, the control, is {format_ratio(control.ratio)} "
            f"({format_interval(control)}): "
            "something beside the environments acts on the trials."
        )
    reach = max(high, 1.0 / low)
    if best and reach >= gain:
        return f" But a second copy of {reference}, the control, may differ by as much: {format_interval(control)}."
    if not best and reach >= _NOISY:
        return f" At this noise (control {format_interval(control)}) smaller differences cannot be seen."
    return ""


def is_eligible_faster(effect: Effect) -> bool:
    """Whether an arm is called faster and nothing bars it: if it is not named, it had left a race."""
    return effect.verdict == "faster" and may_be_best(effect)


def is_faster_by_little(effect: Effect) -> bool:
    """Whether an arm is shown to be faster, but by so little that the design's margin calls it the same."""
    return effect.verdict == "same" and effect.low is not None and effect.low > 1.0 and may_be_best(effect)


def is_faster_with_flag(effect: Effect, flag: str) -> bool:
    """Whether an arm is called faster and has this mark."""
    return effect.verdict == "faster" and flag in effect.flags


def barred(effects: Sequence[Effect]) -> tuple[list[str], list[str]]:
    """Return what environments that are called faster lack to be named, and which lack it."""
    conditions, reasons = [], []
    for flag, (condition, one, several) in DISQUALIFICATION_TEXTS.items():
        names = [effect.environment for effect in effects if is_faster_with_flag(effect, flag)]
        if names:
            conditions.append(condition)
            reasons.append(f"{', '.join(names)} {one if len(names) == 1 else several}")
    gone = [effect.environment for effect in effects if is_eligible_faster(effect)]
    if gone:
        conditions.append("to be the best")
        reasons.append(f"{', '.join(gone)} left the race, as another was surely better")
    return conditions, reasons


def recommendation_reason(choice: Choice, faster: str, margin: float) -> str:
    """Say why that one is recommended, and not more than is so: the simplest of one or of equals would be none."""
    if choice.outdone:
        return f"which is not of it: some of it is surely {faster}, but not shown to be {faster} than the reference"
    if choice.faster == 1:
        return f"the only one of it that is shown to be {faster}"
    if choice.alike == choice.near:
        equals = ", all equally simple" if choice.alike == choice.faster else ""
        return f"the one that measured best of the {choice.faster} that are shown to be {faster}{equals}"
    near = f"the {choice.near} that measured within {percent_of(margin)} of the best that is shown to be {faster}"
    if choice.alike > 1:
        return f"the one that measured best of the {choice.alike} simplest of {near}"
    return f"the simplest of {near}"


def percent_of(share: float) -> str:
    """Return '3 %', and of what is no whole number of percent a digit more."""
    return f"{100 * share:.{0 if round(100 * share, 9).is_integer() else 1}f} %"

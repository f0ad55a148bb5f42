"""The sentences of a table's answer: which environment is faster, and why some faster ones are not recommended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from envmatrix.report.formatting import format_bounds, format_decided_ratio, format_interval, format_ratio
from envmatrix.stats.effects import Effect, Flag, may_be_best
from envmatrix.stats.quality.contention import told_busy
from envmatrix.stats.selection import Choice

#: Why an environment that is significantly faster is not recommended: said of one, and of several.
DISQUALIFICATION_TEXTS: Mapping[str, tuple[str, str]] = {
    Flag.FAILS_MORE: ("is faster but fails more often", "are faster but fail more often"),
    Flag.UNPROVEN: ("is faster but not verified", "are faster but not verified"),
    Flag.UNEQUAL_WORK: ("is faster but did other work", "are faster but did other work"),
}

#: Why a verdict is withheld, short enough for a table cell.
WITHHELD: Mapping[str, str] = {
    Flag.SLOW_TRIALS: "outliers",
    Flag.CONTENDED: "contention",
    Flag.REFERENCE_FAILS_MORE: "reference fails more",
}
#: A control this uncertain is mentioned even if no environment is faster.
_NOISY = 1.25
#: A quota that was used up in more than this share of its periods is mentioned first.
_HELD_BACK = 0.05


def reason(effect: Effect) -> str:
    """Return the reason for a withheld verdict in a few words; '' if none is."""
    return WITHHELD.get(effect.withheld, effect.withheld)


def busy_machine(effects: Sequence[Effect], best: Effect | None, reference: str) -> str:
    """Return the start of a headline about CPU contention, '' without contention."""
    there = [one for one in effects if one.contended.shares]
    held = [one for one in there if one.withheld == Flag.CONTENDED]
    told = best if best else max(held or there, key=lambda one: one.ratio or 0.0, default=None)
    said = told_busy(told.contended, reference, told.environment) if told else ""
    return said[:1].upper() + said[1:]


def under_quota(found: tuple[float, float] | None) -> str:
    """Return the start of a headline about a CPU quota, '' if none throttled the trials."""
    if found is None or found[1] <= _HELD_BACK:
        return ""
    return f"Measured under a CPU quota of {found[0]:g} CPUs, used up in {found[1]:.0%} of its periods. "


def without_contention(effect: Effect) -> str:
    """Return the range of the ratio on a quiet machine, '' without contention."""
    low, high, contended = effect.low, effect.high, effect.contended
    if low is None or high is None or contended.shares is None:
        return ""
    return f" On a quiet machine it may be {format_bounds(low * contended.low, high * contended.high)}."


def explained(effects: Sequence[Effect], as_fast: str) -> str:
    """Return the largest effect that CPU contention can explain, as text; '' if no verdict is withheld for it."""
    held = [one for one in effects if one.withheld == Flag.CONTENDED]
    if not held:
        return ""
    most = max(held, key=lambda one: abs(math.log(one.ratio or 1.0)))
    more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
    return (
        f"{most.environment}{more} measured {format_ratio(most.ratio)} times {as_fast}, which the waiting can explain"
    )


def kept_undecided(effects: Sequence[Effect]) -> list[str]:
    """Return the environments whose interval is above 1, and whose verdict is withheld because of slow trials."""
    return [
        one.environment for one in effects if one.withheld == Flag.SLOW_TRIALS and one.low is not None and one.low > 1.0
    ]


def control_doubt(control: Effect | None, best: Effect | None, gain: float, reference: str) -> str:
    """Return a doubt from the control: it differs from 1, or its interval is as wide as the gain."""
    low, high = (control.low, control.high) if control else (None, None)
    if control is None or low is None or high is None or low <= 0:
        return ""
    if not low <= 1.0 <= high:
        return (
            f" But the control, a second copy of {reference}, measured {format_ratio(control.ratio)} "
            f"({format_interval(control)}): something other than the environments affects the trials."
        )
    reach = max(high, 1.0 / low)
    if best and reach >= gain:
        return f" But the control, a second copy of {reference}, may differ by as much ({format_interval(control)})."
    if not best and reach >= _NOISY:
        return f" With this much noise (control: {format_interval(control)}) smaller differences cannot be detected."
    return ""


def correction(measured: str, gain: float, tested: int) -> str:
    """Return a sentence on the ``gain`` to expect of the best of several; '' if it reads as the measured ratio."""
    expected = format_decided_ratio(gain)
    if measured.startswith(expected):
        return ""
    who = (
        f"The best of {tested} environments is partly lucky, so expect about"
        if tested > 1
        else "Allowing for luck, expect about"
    )
    return f" {who} {expected} rather than {measured}."


def is_eligible_faster(effect: Effect) -> bool:
    """Return whether an environment is faster and not disqualified; if not recommended, it left the race."""
    return effect.verdict == "faster" and may_be_best(effect)


def is_faster_by_little(effect: Effect) -> bool:
    """Return whether an environment is significantly faster, but within the margin and so called the same."""
    return effect.verdict == "same" and effect.low is not None and effect.low > 1.0 and may_be_best(effect)


def is_faster_with_flag(effect: Effect, flag: str) -> bool:
    """Return whether an environment is faster and has this flag."""
    return effect.verdict == "faster" and flag in effect.flags


def barred(effects: Sequence[Effect]) -> list[str]:
    """Return why environments that are significantly faster are not recommended, one text a reason."""
    reasons = []
    for flag, (one, several) in DISQUALIFICATION_TEXTS.items():
        names = [effect.environment for effect in effects if is_faster_with_flag(effect, flag)]
        if names:
            reasons.append(f"{', '.join(names)} {one if len(names) == 1 else several}")
    dropped = [effect.environment for effect in effects if is_eligible_faster(effect)]
    if dropped:
        was = "was" if len(dropped) == 1 else "were"
        reasons.append(f"{', '.join(dropped)} {was} dropped from the race, as another was surely better")
    return reasons


def recommendation_reason(choice: Choice, faster: str, margin: float) -> str:
    """Return why an environment that did not measure best is recommended."""
    if choice.outdone or choice.faster == 1:
        return f"the only one that is significantly {faster}" if choice.faster == 1 else ""
    if choice.alike == choice.near:
        return f"the best measured of the {choice.faster} that are significantly {faster}"
    return f"the one with the fewest changed settings among those within {percent_of(margin)} of the fastest"


def percent_of(share: float) -> str:
    """Return '3 %', with one more digit unless it is a whole number of percent."""
    return f"{100 * share:.{0 if round(100 * share, 9).is_integer() else 1}f} %"

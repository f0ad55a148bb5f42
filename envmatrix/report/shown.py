"""What the effects of a table show, in the words of its headline: who is faster, and why some that are get no name."""

from __future__ import annotations

from collections.abc import Mapping

from envmatrix.stats.effects import Effect, Flag, may_lead
from envmatrix.stats.selection import Choice

#: Why an environment that is called faster is not named: what it lacks, and what is said of one and of several.
BARRED: Mapping[str, tuple[str, str, str]] = {
    Flag.FAILS_MORE: ("to fail no more often", "fails more often", "fail more often"),
    Flag.UNPROVEN: ("to be what its name says", "is unproven", "are unproven"),
    Flag.UNEQUAL_WORK: ("to do equal work", "did other work", "did other work"),
}


def was_faster(effect: Effect) -> bool:
    """Whether an arm is called faster and nothing bars it: if it is not named, it had left a race."""
    return effect.verdict == "faster" and may_lead(effect)


def is_faster_by_little(effect: Effect) -> bool:
    """Whether an arm is shown to be faster, but by so little that the design's margin calls it the same."""
    return effect.verdict == "same" and effect.low is not None and effect.low > 1.0 and may_lead(effect)


def is_faster_but(effect: Effect, flag: str) -> bool:
    """Whether an arm is called faster and has this mark."""
    return effect.verdict == "faster" and flag in effect.flags


def why_recommended(choice: Choice, faster: str, margin: float) -> str:
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

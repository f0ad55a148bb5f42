"""The sentences of a table's answer: what is faster, at first and later, what weakens that, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from envmatrix.report.formatting import (
    NONE,
    format_bounds,
    format_count,
    format_decided_ratio,
    format_interval,
    format_ratio,
    format_speed_up,
    list_names,
)
from envmatrix.stats.best_environment import Choice
from envmatrix.stats.cost import Cost
from envmatrix.stats.effects import Effect, Flag, can_be_called_best
from envmatrix.stats.metrics import show_rate
from envmatrix.stats.quality.contention import told_busy
from envmatrix.stats.steady_state.effect import SteadyEffect

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


def withheld_verdict_reason(effect: Effect) -> str:
    """Return the reason for a withheld verdict in a few words; '' if none is."""
    return WITHHELD.get(effect.withheld, effect.withheld)


def busy_machine(effects: Sequence[Effect], best: Effect | None, reference: str) -> str:
    """Return the start of a headline about CPU contention, '' without contention."""
    contended = [effect for effect in effects if effect.contended.shares]
    withheld = [effect for effect in contended if effect.withheld == Flag.CONTENDED]
    shown = best or max(withheld or contended, key=lambda effect: effect.ratio or 0.0, default=None)
    text = told_busy(shown.contended, reference, shown.environment) if shown else ""
    return text[:1].upper() + text[1:]


def under_quota(quota: tuple[float, float] | None) -> str:
    """Return the start of a headline about a CPU quota, '' if none throttled the trials."""
    if quota is None or quota[1] <= _HELD_BACK:
        return ""
    cpus, used_up = quota
    return f"Measured under a CPU quota of {cpus:g} CPUs, used up in {used_up:.0%} of its periods. "


def quiet_machine_range(effect: Effect) -> str:
    """Return the range of the ratio on a quiet machine, '' without contention."""
    low, high, contended = effect.low, effect.high, effect.contended
    if low is None or high is None or contended.shares is None:
        return ""
    return f" On a quiet machine it may be {format_bounds(low * contended.low, high * contended.high)}."


def effect_explained_by_contention(effects: Sequence[Effect], as_fast: str) -> str:
    """Return the largest effect that CPU contention can explain, as text; '' if no verdict is withheld for it."""
    withheld = [effect for effect in effects if effect.withheld == Flag.CONTENDED]
    if not withheld:
        return ""
    largest = max(withheld, key=lambda effect: abs(math.log(effect.ratio or 1.0)))
    more = f" (and {len(withheld) - 1} more)" if len(withheld) > 1 else ""
    measured = f"{largest.environment}{more} measured {format_ratio(largest.ratio)} times {as_fast}"
    return f"{measured}, which the waiting can explain"


def faster_environments_with_slow_trials(effects: Sequence[Effect]) -> list[str]:
    """Return the environments whose interval is above 1, and whose verdict is withheld because of slow trials."""
    withheld = [effect for effect in effects if effect.withheld == Flag.SLOW_TRIALS]
    return [effect.environment for effect in withheld if effect.low is not None and effect.low > 1.0]


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
    luck = f"The best of {tested} environments is partly lucky, so" if tested > 1 else "Allowing for luck,"
    return f" {luck} expect about {expected} rather than {measured}."


def is_faster_by_little(effect: Effect) -> bool:
    """Return whether an environment is significantly faster, but within the margin and so called the same."""
    return effect.verdict == "same" and effect.low is not None and effect.low > 1.0 and can_be_called_best(effect)


def reasons_not_recommended(effects: Sequence[Effect]) -> list[str]:
    """Return why environments that are significantly faster are not recommended, one text a reason."""
    faster = [effect for effect in effects if effect.verdict == "faster"]
    reasons = []
    for flag, (singular, plural) in DISQUALIFICATION_TEXTS.items():
        names = [effect.environment for effect in faster if flag in effect.flags]
        if names:
            reasons.append(f"{', '.join(names)} {singular if len(names) == 1 else plural}")
    if dropped := [effect.environment for effect in faster if can_be_called_best(effect)]:
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


class Answer(NamedTuple):
    """The claim about the recommended environment, and its figures; the same of later steps if they are not its claim.

    ``doubts`` are sentences on what weakens it.
    """

    claim: str
    figures: str = ""
    doubts: str = ""
    later: str = ""
    later_figures: str = ""


def answer_with_steady_state(steady: SteadyEffect, effect: Effect, as_fast: str, trial: str = "first steps") -> Answer:
    """Return how fast the recommended environment is; ``trial`` says which steps a trial has.

    The claim is about the steady state if the environment is faster there, otherwise about its trials.
    """
    first_bounds, bounds = format_bounds(effect.low, effect.high), format_bounds(steady.low, steady.high)
    blocks = format_count(effect.blocks, "block")
    if steady.verdict == "faster":
        figures = f"95 % CI {bounds}; {trial}: {format_ratio(effect.ratio)}, 95 % CI {first_bounds}, {blocks}"
        return Answer(
            f"{format_decided_ratio(steady.ratio)} times {as_fast} in {steady.time_range_text} of its steps", figures
        )
    later = f"it is about {as_fast}" if steady.verdict == "same" else "no gain is shown"
    return Answer(
        f"{format_speed_up(effect)} times {as_fast} in its {trial}",
        f"95 % CI {first_bounds}, {blocks}",
        later=f"In {steady.time_range_text} of each process, {later}",
        later_figures=f"{format_ratio(steady.ratio)}, 95 % CI {bounds}",
    )


def only_at_first(effects: Mapping[str, tuple[Effect, SteadyEffect]], trial: str) -> str:
    """Return which environments are faster in their trials and slower later, and so not recommended; '' if none."""
    slower = {
        f"{name} ({format_ratio(first.ratio)}, then {format_ratio(steady.ratio)})": steady.time_range_text
        for name, (first, steady) in effects.items()
        if first.verdict == "faster" and steady.verdict == "slower"
    }
    if not slower:
        return ""
    seconds, are = next(iter(slower.values())), "is" if len(slower) == 1 else "are"
    return f"{list_names(list(slower))} {are} faster in the {trial}, but slower in {seconds} of them"


def steady_note(
    steady: Mapping[str, SteadyEffect], missing: Sequence[str], failed: Mapping[str, str], baseline: str
) -> str:
    """Return what the steady effects are of, which still changed, and which environments have none."""
    if not steady:
        return ""
    groups = min(effect.groups for effect in steady.values())
    seconds = next(iter(steady.values())).time_range_text
    texts = [f"{seconds.capitalize()} were measured in {groups} of the blocks."]
    if changing := [name for name, effect in steady.items() if effect.changes]:
        texts.append(f"The effect of {list_names(changing)} over {baseline} still changed: a longer run may differ.")
    texts += [f"{name} ended before: it {reason}." for name, reason in failed.items()]
    if without := [name for name in missing if name not in failed]:
        texts.append(f"First steps only: {list_names(without)}.")
    return " ".join(texts)


_DIGITS = 3


def _figure(value: float, digits: int = _DIGITS) -> str:
    """Return a number with all its digits: 0.180, not 0.18."""
    return show_rate(value) if value >= 1000 else f"{value:#.{digits}g}".rstrip(".")


def money_text(cost: Cost | None) -> str:
    """Return the money."""
    return NONE if cost is None or cost.money is None else _figure(cost.money)


def interval_text(cost: Cost | None) -> str:
    """Return the interval of the money, '' without one; a narrow one has enough digits to show its width."""
    if cost is None or cost.low is None or cost.high is None:
        return ""
    ends = ("", "")
    for digits in range(_DIGITS, _DIGITS + 4):
        ends = _figure(cost.low, digits), _figure(cost.high, digits)
        if ends[0] != ends[1]:
            break
    return " to ".join(ends)


def energy_text(cost: Cost | None) -> str:
    """Return the energy in joules, or that it is not readable."""
    return "not readable" if cost is None or cost.energy_j is None else _figure(cost.energy_j)


def cost_note(costs: Sequence[Cost]) -> str:
    """Return what the costs of a table are for; '' without costs."""
    if not costs:
        return ""
    cost = next((cost for cost in costs if cost.energy_j is not None), costs[0])
    interval = ", with the interval of the speed-up" if any(cost.low is not None for cost in costs) else ""
    energy = (
        "not readable" if cost.energy_j is None else f"per {cost.energy_per}, of all {' and '.join(cost.energy_of)}"
    )
    return f"Cost: per {cost.per}, at {cost.price_per_h:g} per hour{interval}. Energy: {energy}."

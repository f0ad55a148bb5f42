"""Words for effects in the steady state: in the headline, in a table's cell, and below the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envmatrix.report.formatting import format_bounds, format_count, format_decided_ratio, format_ratio, list_names
from envmatrix.stats.effects import Effect
from envmatrix.stats.steady_effect import SteadyEffect


def seconds_text(steady: SteadyEffect) -> str:
    """Return which seconds of its steps an effect is of."""
    return f"seconds {steady.since_s:.0f} to {steady.until_s:.0f}"


def cell_text(steady: SteadyEffect) -> tuple[str, str]:
    """Return the ratio, and its interval."""
    return format_ratio(steady.ratio), format_bounds(steady.low, steady.high)


def steady_gain(
    steady: SteadyEffect, effect: Effect, gain: float, as_fast: str, trial: str = "first steps"
) -> tuple[str, str]:
    """Return the claim about an environment that is faster in its trials, and its figures.

    ``gain`` is the ratio of the trials, corrected for picking the best; the steady ratio is corrected likewise.
    ``trial`` says which steps a trial has.
    """
    first = f"{format_decided_ratio(gain)} times {as_fast}"
    first_figures = f"{format_bounds(effect.low, effect.high)}, {format_count(effect.blocks, 'block')}"
    ratio, bounds, when = gain * steady.change, format_bounds(steady.low, steady.high), seconds_text(steady)
    if steady.low > 1.0 and ratio > 1.0:
        claim = f"{format_decided_ratio(ratio)} times {as_fast} in {when} of its steps"
        return claim, f"95 % CI {bounds}; {trial} {format_decided_ratio(gain)}, {first_figures}"
    verdict = "slower" if steady.high < 1.0 else "not significantly faster"
    claim = f"{first} in its {trial}, but {verdict} in {when} of its steps"
    return claim, f"95 % CI {first_figures}; later {format_ratio(ratio)}, {bounds}"


def steady_note(
    steady: Mapping[str, SteadyEffect], missing: Sequence[str], failed: Mapping[str, str], baseline: str
) -> str:
    """Return what the steady effects are of, which still changed, and which environments have none."""
    if not steady:
        return ""
    shortest = min(steady.values(), key=lambda one: one.until_s)
    groups = format_count(min(one.groups for one in steady.values()), "block")
    texts = [f"Steady effects: {seconds_text(shortest)} of the steps of each process, in {groups}."]
    if changing := [name for name, one in steady.items() if one.changes]:
        texts.append(f"The effect of {list_names(changing)} over {baseline} still changed: a longer run may differ.")
    texts += [f"{name} ended before: it {reason}." for name, reason in failed.items()]
    if without := [name for name in missing if name not in failed]:
        texts.append(f"First steps only: {list_names(without)}.")
    return " ".join(texts)

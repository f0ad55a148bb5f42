"""Words for effects in the steady state: in the headline, in a table's cell, and below the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from envmatrix.report.formatting import (
    format_bounds,
    format_count,
    format_decided_ratio,
    format_ratio,
    format_speed_up,
    list_names,
)
from envmatrix.stats.effects import Effect
from envmatrix.stats.steady_state.effect import SteadyEffect


class Answer(NamedTuple):
    """The claim about the recommended environment, and its figures; the same of later steps if they are not its claim.

    ``doubts`` are sentences on what weakens it.
    """

    claim: str
    figures: str = ""
    doubts: str = ""
    later: str = ""
    later_figures: str = ""


def steady_gain(steady: SteadyEffect, effect: Effect, as_fast: str, trial: str = "first steps") -> Answer:
    """Return how fast the recommended environment is; ``trial`` says which steps a trial has.

    The claim is about the steady state if the environment is faster there, otherwise about its trials.
    """
    first_bounds, bounds = format_bounds(effect.low, effect.high), format_bounds(steady.low, steady.high)
    blocks = format_count(effect.blocks, "block")
    if steady.verdict == "faster":
        figures = f"95 % CI {bounds}; {trial}: {format_ratio(effect.ratio)}, 95 % CI {first_bounds}, {blocks}"
        return Answer(f"{format_decided_ratio(steady.ratio)} times {as_fast} in {steady.seconds} of its steps", figures)
    return Answer(
        f"{format_speed_up(effect)} times {as_fast} in its {trial}",
        f"95 % CI {first_bounds}, {blocks}",
        later=f"In {steady.seconds}, {f'it is about {as_fast}' if steady.verdict == 'same' else 'no gain is shown'}",
        later_figures=f"{format_ratio(steady.ratio)}, 95 % CI {bounds}",
    )


def only_at_first(effects: Mapping[str, tuple[Effect, SteadyEffect]], trial: str) -> str:
    """Return which environments are faster in their trials and slower later, and so not recommended; '' if none."""
    found = {
        f"{name} ({format_ratio(first.ratio)}, then {format_ratio(steady.ratio)})": steady.seconds
        for name, (first, steady) in effects.items()
        if first.verdict == "faster" and steady.verdict == "slower"
    }
    if not found:
        return ""
    seconds, are = next(iter(found.values())), "is" if len(found) == 1 else "are"
    return f"{list_names(list(found))} {are} faster in the {trial}, but slower in {seconds} of them"


def steady_note(
    steady: Mapping[str, SteadyEffect], missing: Sequence[str], failed: Mapping[str, str], baseline: str
) -> str:
    """Return what the steady effects are of, which still changed, and which environments have none."""
    if not steady:
        return ""
    groups = min(one.groups for one in steady.values())
    seconds = next(iter(steady.values())).seconds
    texts = [f"{seconds.capitalize()} were measured in {groups} of the blocks."]
    if changing := [name for name, one in steady.items() if one.changes]:
        texts.append(f"The effect of {list_names(changing)} over {baseline} still changed: a longer run may differ.")
    texts += [f"{name} ended before: it {reason}." for name, reason in failed.items()]
    if without := [name for name in missing if name not in failed]:
        texts.append(f"First steps only: {list_names(without)}.")
    return " ".join(texts)

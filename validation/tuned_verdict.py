"""Verdict on claims of `envmatrix tune` from independent runs, per try and over all tries.

A try is confirmed by its check, an independent run that chose nothing (validation/tuned_check.py), on two conditions.
The recipe is faster than the baseline (its 95 % interval is above 1). Its gain equals the claim up to chance: the logs
differ by at most the root sum of squares of the facing half-widths, the 95 % interval of the difference of two runs.
Too much and too little both count as misses, and so does drift of the machine. A try is good if it is confirmed and no
named recipe is significantly faster than its own. A try without a recommendation is not good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envmatrix.search.step_results import running_and_gap_s
from envmatrix.stats.effect_estimation import between, estimate
from envmatrix.stats.measurements import fold_trials
from validation.measured_parts import trials_of
from validation.tuned_check import check_of, claim_of

#: Tries that are required, how many of them must be good, and by how much a search may exceed its budget.
TRIES, GOOD, OVER = 10, 9, 1.05

Json = Mapping[str, Any]


def verdict_of(part: Path, folder: Path) -> dict[str, Any] | None:
    """Return a try's claim and its check's result, or None if it is unfinished."""
    claim = claim_of(folder)
    if claim is None:
        return None
    found = {key: claim[key] for key in ("of", "recipe", "claimed", "interval", "spent_s", "budget_s", "recommended")}
    if not (claim["recommended"] and claim["interval"]):
        return {**found, "good": False}
    check = check_of(part, folder.name)
    if check is None or not check.is_over:
        return None
    run = check.run.load()
    trials = list(trials_of(check.run, run.plan))
    measured = fold_trials(run.plan, trials)
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
    arms = {
        arm.environment: arm for arm in run.arms if arm.reference and not (arm.is_control or arm.is_uninterrupted_copy)
    }
    own = arms[check.of[folder.name]]
    effect = analysis.find(own.name)
    over = {name: between(analysis, measured, arms[name], own, run.environments)
            for name in check.named if arms[name] is not own}  # fmt: skip
    over = {name: one for name, one in over.items() if one.ratio is not None}
    named = min(over, key=lambda name: over[name].ratio or 0.0, default=None)
    spans = ((one.started, one.started + one.wall_s) for one in trials if one.started and one.wall_s)
    beaten_by = [name for name, one in over.items() if one.high is not None and one.high < 1.0]
    told = judged((claim["claimed"], *claim["interval"]), (effect.ratio, effect.low, effect.high))
    return {**found, **told, "good": told["confirmed"] and not beaten_by, "ratio": effect.ratio,
            "low": effect.low, "high": effect.high, "blocks": effect.blocks, "check": check.path.name,
            "check_s": sum(running_and_gap_s(spans)), "beaten_by": beaten_by, "named": sorted(over),
            "over_best_named": named and {"name": named, "ratio": over[named].ratio, "low": over[named].low,
                                          "high": over[named].high}}  # fmt: skip


def judged(
    claimed: tuple[float | None, float, float], found: tuple[float | None, float | None, float | None]
) -> dict[str, bool]:
    """Return whether a run shows a gain, and whether it equals the claim; both are (ratio, low, high)."""
    ratio, low, high = found
    if not (claimed[0] and ratio and low and high):
        return {"faster": False, "as_claimed": False, "confirmed": False}
    more = math.log(claimed[0] / ratio)
    halves = (claimed[0] / claimed[1], high / ratio) if more > 0 else (claimed[2] / claimed[0], ratio / low)
    faster, same = low > 1.0, abs(more) <= math.hypot(*map(math.log, halves))
    return {"faster": faster, "as_claimed": same, "confirmed": faster and same}


def summary_of(tries: Mapping[str, Json]) -> dict[str, Any]:
    """Judge all finished tries, and count those of each subject."""
    good = [one for one in tries.values() if one["good"]]
    claims = [one for one in tries.values() if one.get("ratio") and one["claimed"]]
    of: dict[str, list[bool]] = {}
    for one in tries.values():
        of.setdefault(one["of"], []).append(bool(one["good"]))
    verdict = "MET" if len(good) >= math.ceil(len(tries) * GOOD / TRIES) else "MISSED"
    off = [100 * (one["claimed"] - one["ratio"]) for one in claims]
    return {
        "tries": len(tries),
        "good": len(good),
        "confirmed": sum(bool(one.get("confirmed")) for one in tries.values()),
        "beaten": sum(bool(one.get("beaten_by")) for one in tries.values()),
        "claimed_minus_found_points": sum(off) / len(off) if off else None,
        "within_budget": sum(one["spent_s"] <= OVER * one["budget_s"] for one in tries.values()),
        "of": {name: {"tries": len(those), "good": sum(those)} for name, those in of.items()},
        "verdict": verdict if len(tries) >= TRIES else f"not decided: {TRIES} are wanted, the same command goes on",
    }


def lines_of(tries: Mapping[str, Json], total: Json) -> list[str]:
    """Return lines for all tries and their summary."""
    lines = [line_of(name, one) for name, one in tries.items()]
    if len(total["of"]) > 1:
        lines += [f"of {name}: {one['good']} of {one['tries']} good" for name, one in total["of"].items()]
    off = total["claimed_minus_found_points"]
    if off is not None:
        lines.append(f"claimed minus found on average: {off:+.1f} points")
    lines.append(f"{total['within_budget']} of {total['tries']} searches within {OVER:.0%} of their budgets")
    several = f"{total['confirmed']} confirmed, {total['beaten']} beaten by a named recipe"
    wanted = f"wanted: {GOOD} of {TRIES}"
    return [*lines, f"{total['good']} of {total['tries']} tries good ({several}; {wanted}): {total['verdict']}"]


def line_of(name: str, one: Json) -> str:
    """Return a line about a try."""
    recipe = ", ".join(f"{factor}={level}" for factor, level in one["recipe"].items()) or "the baseline"
    spent = f"{one['spent_s']:.0f} s of {one['budget_s']:.0f} s"
    first = f"  {name} ({one['of']}): "
    if "ratio" not in one:
        return f"{first}nothing was recommended ({recipe}): not good; {spent}"
    claimed, found = _shown(one["claimed"], *one["interval"]), _shown(one["ratio"], one["low"], one["high"])
    best = one["over_best_named"]
    over = f", {_shown(best['ratio'], best['low'], best['high'])} times the best named, {best['name']}" if best else ""
    misses = {"not faster": not one["faster"], "not as claimed": not one["as_claimed"],
              f"beaten by {', '.join(one['beaten_by'])}": one["beaten_by"]}  # fmt: skip
    why = ", ".join(word for word, is_so in misses.items() if is_so)
    how = "good" if one["good"] else f"not good ({why})"
    found = f"{found} in {one['blocks']} blocks"
    then = f"then {one['check']} of {one['check_s']:.0f} s"
    return f"{first}{recipe} claimed {claimed}, found {found}{over}: {how}; {spent}, {then}"


def _shown(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None or low is None or high is None:
        return "nothing"
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"

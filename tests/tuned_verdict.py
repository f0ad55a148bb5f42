"""Whether a run of its own confirms what `envmatrix tune` claimed, try by try and of all tries.

A try is confirmed when its independent run, which chose nothing, shows the recipe to be faster than the baseline (its
95 % interval lies above 1), and its gain is the one that was claimed but for chance: the logs of both differ by no more
than the root of the sum of squares of the halves of both intervals that face each other, which is the 95 % interval of
the difference of two runs. Too much and too little are misses alike, and so is what the machine did meanwhile. A try is
good when it is confirmed and no named recipe is shown to be faster than its own. One that recommends nothing is not.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envmatrix.api import tunes
from envmatrix.stats.analysis import between, estimate
from envmatrix.stats.measurements import fold, read_trials
from envmatrix.stats.tuning_steps import row_of, within_s
from envmatrix.store import RunFolder
from envmatrix.store.study import StudyFolder

#: Tries that are wanted, how many of them must be good, and by how much a search may exceed its budget.
TRIES, GOOD, OVER = 10, 9, 1.05
INDEPENDENT = "independent"

Json = Mapping[str, Any]


def is_searched(folder: Path) -> bool:
    """Say whether the search of a try is over: its answer is written then, and is none of an interrupted one."""
    file = folder / "tune.json"
    return file.exists() and not json.loads(file.read_text())["interrupted"]


def independent_of(folder: Path) -> RunFolder | None:
    """Return the independent run of a try, None where none was begun."""
    files = sorted((folder / INDEPENDENT).glob("*/run.json"))
    return RunFolder(files[-1].parent) if files else None


def is_over(folder: Path) -> bool:
    """Say whether nothing of a try is left to run."""
    if not is_searched(folder) or not tunes.TuneResult(folder).settings:
        return is_searched(folder)
    found = independent_of(folder)
    if not found:
        return False
    plan = found.load().plan
    trials = Counter(trial.block for trial in found.trials(plan))
    return sum(count == len(plan.arms) for count in trials.values()) == plan.max_blocks


def verdict_of(folder: Path) -> dict[str, Any] | None:
    """Return what a try claimed and what its independent run says; None: it is not over."""
    if not is_over(folder):
        return None
    result = tunes.TuneResult(folder)
    found = {"recipe": dict(result.answer.tried), "claimed": result.ratio, "interval": result.interval,
             "spent_s": result.answer.spent_s, "budget_s": StudyFolder(folder).load().budget,
             "recommended": bool(result.settings)}  # fmt: skip
    independent = independent_of(folder)
    if not (result.settings and result.interval and independent):
        return {**found, "good": False}
    run = independent.load()
    trials = list(read_trials(independent, run.plan))
    measured = fold(run.plan, trials)
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
    space, last = result._read[0].space, StudyFolder(folder).steps()[-1].load()
    row = row_of(space, last, last.arms[-1])
    compared = [arm for arm in run.arms if arm.reference and not (arm.is_control or arm.is_alone)]
    own = next(arm for arm in compared if row_of(space, run, arm) == row)
    effect = analysis.find(own.name)
    over = {arm.environment: between(analysis, measured, arm, own, run.environments)
            for arm in compared if arm is not own}  # fmt: skip
    over = {name: one for name, one in over.items() if one.ratio is not None}
    named = min(over, key=lambda name: over[name].ratio or 0.0, default=None)
    spans = ((one.started, one.started + one.wall_s) for one in trials if one.started and one.wall_s)
    beaten_by = [name for name, one in over.items() if one.high is not None and one.high < 1.0]
    told = judged((result.ratio, *result.interval), (effect.ratio, effect.low, effect.high))
    return {**found, **told, "good": told["confirmed"] and not beaten_by, "ratio": effect.ratio,
            "low": effect.low, "high": effect.high, "blocks": effect.blocks, "independent_s": within_s(spans),
            "beaten_by": beaten_by, "named": sorted(over),
            "over_best_named": named and {"name": named, "ratio": over[named].ratio, "low": over[named].low,
                                          "high": over[named].high}}  # fmt: skip


def judged(
    claimed: tuple[float | None, float, float], found: tuple[float | None, float | None, float | None]
) -> dict[str, bool]:
    """Say whether a run shows a gain at all, and whether it is the one that was claimed (ratio, low, high of both)."""
    ratio, low, high = found
    if not (claimed[0] and ratio and low and high):
        return {"faster": False, "as_claimed": False, "confirmed": False}
    more = math.log(claimed[0] / ratio)
    halves = (claimed[0] / claimed[1], high / ratio) if more > 0 else (claimed[2] / claimed[0], ratio / low)
    faster, same = low > 1.0, abs(more) <= math.hypot(*map(math.log, halves))
    return {"faster": faster, "as_claimed": same, "confirmed": faster and same}


def summary_of(tries: Mapping[str, Json]) -> dict[str, Any]:
    """Judge all tries that are over, and tell how many there are of each subject."""
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


def words_of(what: Json) -> str:
    """Write what a try is of: a design's name, or the words of a program."""
    return shlex.join(what["program"]) if "program" in what else f"design {what.get('design', 'nobody noted')}"


def lines_of(tries: Mapping[str, Json], total: Json) -> list[str]:
    """Write all tries and what they come to."""
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
    """Write a try in a line."""
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
    return f"{first}{recipe} claimed {claimed}, found {found}{over}: {how}; {spent}, then {one['independent_s']:.0f} s"


def _shown(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None or low is None or high is None:
        return "nothing"
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"

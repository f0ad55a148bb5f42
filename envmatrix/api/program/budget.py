"""Choose how many environments fit into the time for a user's program, and describe that time."""

from __future__ import annotations

from envmatrix.report.formatting import format_count
from envmatrix.trials.overrides import Overrides
from envmatrix.units import as_budget, as_duration, is_too_long, parse_duration

#: Without --budget: as many environments as get a verdict within these seconds of blocks, but at least the minimum. The
#: rest of three minutes is for `pip install`, the trial run, the libraries and the table.
_FIRST_ANSWER_S = 120.0
_MIN_ENVIRONMENTS = 2
_MIN_BLOCKS = 6
_TIME_MARGIN = 1.15
#: A trial that takes longer (seconds) makes its user wait for hours.
_LONG_TRIAL_S = 60.0


def outlook_text(trial_s: float, workloads: int, overrides: Overrides) -> str:
    """Return how much longer than ``trial_s`` all takes, while the trial run is not over; '' if nothing is decided."""
    blocks = overrides.min_blocks or _MIN_BLOCKS
    if 0 < (overrides.max_blocks or 0) < blocks:
        return ""
    trials = blocks * (len(overrides.environments or ()) or _MIN_ENVIRONMENTS) + 2 * blocks
    least_s = trials * workloads * trial_s
    budget_s = parse_duration(overrides.budget) if overrides.budget else least_s
    short_text = f", and --budget {as_duration(budget_s)} is too short" if budget_s < least_s else ""
    return f"; a verdict needs {trials * workloads} such runs: {as_duration(least_s)} or more{short_text}"


def time_text(budget_s: float, trial_s: float, arms: int, overrides: Overrides) -> str:
    """Describe how much is run, and how to get a verdict if the program is too slow for that."""
    blocks = overrides.min_blocks or _MIN_BLOCKS
    all_s = blocks * arms * trial_s
    is_long = trial_s > _LONG_TRIAL_S
    if overrides.budget:
        fit = format_count(int(budget_s / trial_s), "trial")
        text = f"budget {as_duration(budget_s)}: time for {fit} like the trial run; a verdict needs {blocks * arms}"
        if budget_s >= all_s:
            return text
        budget = [] if is_too_long(all_s * _TIME_MARGIN) else [f"--budget {as_budget(all_s * _TIME_MARGIN)}"]
        ways = " or ".join(budget + ["fewer steps or epochs"] * is_long)
        one_block = f". One block of {arms} runs in any case: {as_duration(arms * trial_s)}"
        return f"{text}{': use ' if ways else ''}{ways}{one_block if budget_s < arms * trial_s else ''}"
    max_blocks = overrides.max_blocks or 0
    if 0 < max_blocks < blocks:
        return f"the table comes after {max_blocks} x {arms} trials: about {as_budget(trial_s * arms * max_blocks)}"
    if is_long:
        return f"{blocks} blocks of {arms} trials, or more: about {as_duration(all_s)}; fewer steps or epochs take less"
    return f"{blocks} blocks of {arms} trials, or more; the first blocks will show how long that takes"


def fit_budget(trial_s: float, environment_count: int, overrides: Overrides) -> tuple[int, float]:
    """Return how many arms (with baseline and control) and seconds to plan, enough for a verdict on each."""
    each_s = arm_time_s(trial_s, overrides)
    given_s = parse_duration(overrides.budget) if overrides.budget else None
    fit = int((given_s / each_s if given_s else _FIRST_ANSWER_S * _TIME_MARGIN / each_s) + 1e-6)
    arms = (
        environment_count + 2
        if overrides.environments
        else max(min(environment_count, _MIN_ENVIRONMENTS) + 2, min(environment_count + 2, fit))
    )
    return arms, given_s or min(_FIRST_ANSWER_S, max(60.0, each_s * arms))


def arm_time_s(trial_s: float, overrides: Overrides) -> float:
    """Return the seconds that an arm needs until a verdict is possible."""
    return trial_s * (overrides.min_blocks or _MIN_BLOCKS) * _TIME_MARGIN

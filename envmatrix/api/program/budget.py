"""Choose how many environments fit into the time for a user's program, and describe that time."""

from __future__ import annotations

from envmatrix.report.formatting import format_count
from envmatrix.trials.overrides import Overrides
from envmatrix.units import as_budget, as_duration, parse_duration

#: Without --budget: as many environments as get a verdict within these seconds of blocks, but at least the minimum. The
#: rest of three minutes is for `pip install`, the trial run, the libraries and the table.
_FIRST_ANSWER_S = 120.0
_MIN_ENVIRONMENTS = 2
_MIN_BLOCKS = 6
_TIME_MARGIN = 1.15


def time_text(budget_s: float, trial_s: float, arms: int, overrides: Overrides) -> str:
    """Describe how much is run: the trials of a budget, or the blocks until the first table."""
    blocks = overrides.min_blocks or _MIN_BLOCKS
    if overrides.budget:
        fit = format_count(int(budget_s / trial_s), "trial")
        return f"budget {as_duration(budget_s)}: time for {fit} like the trial run; a verdict needs {blocks * arms}"
    max_blocks = overrides.max_blocks or 0
    if 0 < max_blocks < blocks:
        return f"the table comes after {max_blocks} x {arms} trials: about {as_budget(trial_s * arms * max_blocks)}"
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

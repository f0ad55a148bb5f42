"""Selection: the best set, the recommended environment, and its gain corrected for picking the best of many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from envmatrix.plan import Arm
from envmatrix.plan.environment import Environment
from envmatrix.stats.array_types import Bools, Floats, Integers
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.effects import ALL_ANALYSES_LEVEL, Effect, can_be_called_best
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import Views, families, log_ratios_over_copy_mean, logs_of, ratio_from_log, summarise_pairs
from envmatrix.stats.steady_state.effect import SteadyEffect
from envmatrix.stats.stopping.racing import BEST_SET_SHARE, rivals_lead_lower_bounds, surely_not_best

_HALVES, _SEED = 200, 20_260_102


@dataclass(frozen=True)
class Choice:
    """The choice for one table. ``best_set`` are the arms that no other surely beats, the fastest first.

    ``arm`` is the recommended one of them; ``gain`` is its ratio corrected for the choice. ``faster`` counts the arms
    of the set that are significantly faster. ``near`` counts those of them within the margin of the fastest, and
    ``alike`` those of these as simple as the recommended one, including itself. ``outdone``: an arm of the set surely
    beats the recommended one, but is not significantly faster than the reference. ``ahead`` is the fastest arm of the
    set, and the largest factor by which it may beat the recommended one (None: same arm).
    """

    arm: str
    gain: float
    best_set: tuple[str, ...]
    faster: int = 1
    alike: int = 1
    outdone: bool = False
    near: int = 1
    ahead: tuple[str, float] | None = None


@dataclass(frozen=True)
class Candidates:
    """Arms that may be the best: paired log ratios of m arms, their lower bounds ``low``, and a ``faster`` mask.

    ``settings`` orders them by simplicity, the simplest lowest; ``margin``: arms measured this close are equally good.
    Of steady effects, ``high`` and ``error`` are their upper bounds and errors (None: those of the trials are used).
    """

    differences: Views
    low: Floats
    faster: Bools
    settings: Sequence[tuple[int, ...]]
    margin: float = 0.03
    high: Floats | None = None
    error: Floats | None = None

    def in_best_set(self, tests: float) -> Bools:
        """Return the mask of the best set; of steady effects, one is surely beaten if another's interval is above."""
        if self.high is not None:
            return np.asarray(self.high >= self.low.max())
        return ~surely_not_best(self.differences, self.differences, max(1, tests))

    @cached_property
    def mean_log_ratios(self) -> Floats:
        """The mean log ratio of each arm, as measured."""
        return self.differences.paired()[0].mean

    @cached_property
    def simplicity_ranks(self) -> Integers:
        """The ranks of the arms by simplicity; equally simple arms share one."""
        order = sorted(set(self.settings))
        return np.array([order.index(changed_settings) for changed_settings in self.settings], np.int64)


def choose_best_set(
    analysis: Analysis,
    measured: Measurements,
    arms: Sequence[Arm],
    environments: Mapping[str, Environment],
    steady: Mapping[str, SteadyEffect] | None = None,
) -> Choice | None:
    """Return the choice among the ``arms`` of one table, or None if none is significantly faster.

    Arms that did other work, are not verified, fail more often than their reference or were stopped by a race are not
    in the set. If any is faster in the ``steady`` state (by arm), only effects in it count. Otherwise those of the
    trials do, without arms that are slower in the steady state.
    """
    stopped_names = {item.arm for item in analysis.race.stopped} if analysis.race else set()
    able = [
        (arm, effect)
        for arm in arms
        if arm.name not in stopped_names and (effect := analysis.find(arm.name))
        if effect.low is not None and can_be_called_best(effect)
    ]
    later = {arm.name: steady[arm.name] for arm, _ in able if steady and arm.name in steady}
    if any(one.verdict == "faster" for one in later.values()):
        able = [(arm, effect) for arm, effect in able if arm.name in later]
        faster = [later[arm.name].verdict == "faster" for arm, _ in able]
    else:
        able = [(arm, effect) for arm, effect in able if arm.name not in later or later[arm.name].verdict != "slower"]
        faster, later = [effect.verdict == "faster" for _, effect in able], {}
    if not any(faster):
        return None
    able_arms = [arm for arm, _ in able]
    differences = _log_ratio_views(analysis, measured, able_arms)
    low = np.array([math.log(effect.low or 1.0) for _, effect in able])
    settings = [_changed_setting_counts(arm, analysis.plan.arms, environments) for arm in able_arms]
    candidates = Candidates(differences, low, np.array(faster, np.bool_), settings, analysis.plan.margin)
    if later:
        candidates = _in_steady_state(candidates, [(effect, later[arm.name]) for arm, effect in able])
    tests = len(arms) / BEST_SET_SHARE if analysis.race else len(able) - 1
    # The error of all analyses is split among them as it is for the table.
    return _choice(candidates, able_arms, max(1, tests) * (1.0 - ALL_ANALYSES_LEVEL) / (1.0 - analysis.level))


def _in_steady_state(candidates: Candidates, effects: Sequence[tuple[Effect, SteadyEffect]]) -> Candidates:
    """Return the candidates with their steady effects: log ratios moved by their change, with the bounds of those."""
    change = np.log([[steady.change] for _, steady in effects])
    low, high = np.log([[steady.low, steady.high] for _, steady in effects]).T
    first = np.log([[effect.low or 1.0, effect.high or 1.0] for effect, _ in effects])
    widths = (high - low) / np.maximum(first[:, 1] - first[:, 0], np.finfo(float).tiny)
    differences = candidates.differences
    moved = Views(tuple(view + change for view in differences.every), differences.gaps)
    return replace(candidates, differences=moved, low=low, high=high, error=differences.paired()[0].error * widths)


def _choice(candidates: Candidates, arms: Sequence[Arm], tests: float) -> Choice:
    recommended_row, in_best_set, gain = recommended_row_and_best_set(candidates, tests)
    mean = candidates.mean_log_ratios
    ranked = sorted(map(int, np.flatnonzero(in_best_set)), key=lambda at: -float(mean[at]))
    names = tuple(arms[at].name for at in ranked)
    recommendable = _recommendable_rows(candidates, in_best_set)
    near = [at for at in recommendable if mean[at] >= mean[recommendable].max() - math.log1p(candidates.margin)]
    alike = sum(candidates.simplicity_ranks[at] == candidates.simplicity_ranks[recommended_row] for at in near)
    lead = _lead(candidates, ranked[0], recommended_row, tests)
    ahead = (names[0], ratio_from_log(lead)) if math.isfinite(lead) else None
    outdone = not in_best_set[recommended_row]
    return Choice(
        arms[recommended_row].name, ratio_from_log(gain), names, len(recommendable), alike, outdone, len(near), ahead
    )


def _lead(candidates: Candidates, fastest: int, chosen: int, tests: float) -> float:
    """Return by how much, at most, one arm is faster than the chosen one, in log units; -inf if it is the same arm."""
    if fastest == chosen:
        return -math.inf
    if candidates.high is not None:
        return max(0.0, float(candidates.high[fastest] - candidates.low[chosen]))
    differences = candidates.differences
    least = rivals_lead_lower_bounds(differences.rows([fastest]), differences.rows([chosen]), max(1, tests))
    return max(0.0, -float(least[0, 0]))


def _log_ratio_views(analysis: Analysis, measured: Measurements, arms: Sequence[Arm]) -> Views:
    """Return the log ratios of arms, each over its own reference, with and without slow trials."""
    index = {name: row for row, name in enumerate(measured.arms)}

    def log_ratios(arm: Arm, left_out: Bools) -> Floats:
        family = next(family for family in families(analysis.plan) if arm in family.arms)
        metric = analysis.primary[family.arms[0].workload]
        rows = [*(index[name] for name in family.copies), index[arm.name]]
        logs = metric.sign * logs_of(measured.table[metric.name][rows])
        return log_ratios_over_copy_mean(np.where(left_out[rows], np.nan, logs), len(family.copies))

    masks = (np.zeros_like(analysis.slow), analysis.slow)[: 1 + analysis.slow.any()]
    return Views(tuple(np.vstack([log_ratios(arm, mask) for arm in arms]) for mask in masks), measured.block_gaps)


def _changed_setting_counts(arm: Arm, arms: Sequence[Arm], environments: Mapping[str, Environment]) -> tuple[int, int]:
    """Return the number of levels, then of variables, that differ from the reference's."""
    runs = next((other.runs for other in arms if other.name == arm.reference), "")
    reference, environment = environments.get(runs), environments.get(arm.runs)
    if environment is None or reference is None:
        return 0, 0
    levels, variables = environment.levels, environment.variables
    return (
        sum(reference.levels.get(factor) != level for factor, level in levels.items()),
        sum(reference.variables.get(name) != value for name, value in variables.items()),
    )


def recommended_row_and_best_set(candidates: Candidates, tests: float) -> tuple[int, Bools, float]:
    """Return the row of the recommended candidate, a mask of the best set, and the recommended one's log gain.

    The best set contains each arm that no other surely beats (multiple comparisons with the best, Hsu 1984). It misses
    the best arm in at most 5 % of runs. The recommended arm is significantly faster than the reference. It is the
    simplest within the margin of the fastest such arm in the set, or the fastest of equally simple ones. An arm that is
    not significantly faster (it has slow trials, or another reference) may surely beat all that are. Then the
    recommended arm is not in the set. At least one of ``candidates`` must be faster.
    """
    in_best_set, mean = candidates.in_best_set(tests), candidates.mean_log_ratios
    able = _recommendable_rows(candidates, in_best_set)
    recommended_row = able[int(_picked(mean[able], candidates.simplicity_ranks[able], candidates.margin))]
    rivals = [
        at
        for at, rank in enumerate(candidates.simplicity_ranks)
        if rank == candidates.simplicity_ranks[recommended_row] or at in able
    ]
    raw_gain, low = float(mean[recommended_row]), float(candidates.low[recommended_row])
    differences = candidates.differences
    cross_gain = cross_fitted_gain(
        differences.with_all_trials[rivals], candidates.simplicity_ranks[rivals], candidates.margin
    )
    error = differences.paired()[0].error if candidates.error is None else candidates.error
    return recommended_row, in_best_set, told_gain(raw_gain, low, float(error[recommended_row]), cross_gain)


def told_gain(raw: float, low: float, error: float, crossed: float = math.inf) -> float:
    """Return the log gain to report, corrected for picking (``crossed``) and for reporting only if ``low`` > 0."""
    fair = min(raw, crossed)
    return max(low, (fair + selection_corrected_gain(fair, low, error)) / 2)


def _picked(means: Floats, ranks: Integers, margin: float) -> Integers:
    """Return the simplest row of (..., m) within the margin of the fastest; of equally simple rows, the fastest."""
    near = means >= means.max(axis=-1, keepdims=True) - math.log1p(margin)
    simplest = np.where(near, ranks, ranks.max() + 1).min(axis=-1, keepdims=True)
    return np.asarray(np.where(near & (ranks == simplest), means, -np.inf).argmax(axis=-1))


def _recommendable_rows(candidates: Candidates, in_best_set: Bools) -> list[int]:
    """Return the rows that are significantly faster, limited to the best set if it has any of them."""
    eligible_rows = np.flatnonzero(candidates.faster & in_best_set)
    return [int(row) for row in (eligible_rows if eligible_rows.size else np.flatnonzero(candidates.faster))]


@lru_cache(maxsize=64)
def _random_halves(blocks: int) -> Bools:
    order = np.random.default_rng((_SEED, blocks)).random((_HALVES, blocks)).argsort(axis=1)
    return np.asarray(order < blocks // 2)


def cross_fitted_gain(differences: Floats, ranks: Integers, margin: float) -> float:
    """Return the mean log ratio of the row picked in one half of the blocks, measured in the other half.

    It is averaged over many random halves of (m, blocks). Picking and measuring use different blocks, so luck in
    picking does not count as gain.
    """
    is_present = np.isfinite(differences)
    values = np.where(is_present, differences, 0.0)
    first_half = _random_halves(differences.shape[1])
    sums, counts = first_half @ values.T, first_half @ is_present.T.astype(np.float64)
    other_sums, other_counts = (~first_half) @ values.T, (~first_half) @ is_present.T.astype(np.float64)
    fastest_rows = _picked(np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf), ranks, margin)
    picked = np.arange(len(first_half)), fastest_rows
    has_other_half = other_counts[picked] > 0
    half_gains = other_sums[picked][has_other_half] / other_counts[picked][has_other_half]
    return float(half_gains.mean()) if half_gains.size else float(summarise_pairs(differences).mean.max())


def selection_corrected_gain(value: float, low: float, error: float) -> float:
    """Return the most likely log gain (at least 0) if a gain is reported only with a lower bound above 0.

    It maximizes the conditional likelihood of a normal with standard deviation ``error``, truncated at the point with
    ``low`` = 0 (Ghosh, Zou & Wright 2008). The mean of reported gains is then ``value``.
    """
    if not error > 0 or value <= 0:
        return max(0.0, value)
    from scipy.special import log_ndtr

    def expected_estimate(gain: float) -> float:
        beyond = (value - low - gain) / error
        return gain + error * math.exp(-0.5 * (beyond**2 + math.log(2 * math.pi)) - float(log_ndtr(-beyond)))

    below, above = 0.0, value
    for _ in range(50):
        middle = (below + above) / 2
        below, above = (below, middle) if expected_estimate(middle) > value else (middle, above)
    return below

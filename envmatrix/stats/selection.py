"""Which environments are the best set, which of them is recommended, and its gain with that choice allowed for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Arm
from envmatrix.plan.environment import Environment
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.effects import ALL_ANALYSES_LEVEL, may_be_best
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import Views, families, log_ratios_over_copies, logs_of, ratio_from_log, summarise_pairs
from envmatrix.stats.racing import decision_blocks, lead_lower_bounds, surely_not_best

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_HALVES, _SEED = 200, 20_260_102


@dataclass(frozen=True)
class Choice:
    """The answer of one table. ``best_set`` are arms of which none is shown to be worse, the fastest first.

    ``arm`` is the recommended one of them, ``gain`` its ratio with the choice allowed for. ``faster`` counts those of
    the set that are shown to be faster, ``near`` those of these that measured within the margin of the fastest of them,
    ``alike`` those of these that are as simple as the recommended one, itself among them. ``outdone``: some of the set
    is surely better than it, but not shown to be faster than the reference. ``ahead`` is the arm of the set that
    measured fastest, and how many times as fast as the recommended one it may be (None: it is the recommended one).
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
    """Arms that may be the best: paired log ratios of m, whose lower bound is ``low``, shown ``faster`` or not.

    ``settings`` orders them by simplicity, the simplest lowest; ``margin``: who measured this near is as good.
    """

    differences: Views
    low: Floats
    faster: Bools
    settings: Sequence[tuple[int, ...]]
    margin: float = 0.03

    @cached_property
    def ranks(self) -> Ints:
        """The places of the arms in order of simplicity; equally simple ones share one."""
        order = sorted(set(self.settings))
        return np.array([order.index(one) for one in self.settings], np.int64)


def choose_best_set(
    analysis: Analysis, measured: Measurements, arms: Sequence[Arm], environments: Mapping[str, Environment]
) -> Choice | None:
    """Return the best set of the ``arms`` of one table; None where none is shown to be faster.

    Arms that did other work, or that fail more often than their reference, are in no set, nor are those that a race
    has stopped.
    """
    stopped_names = {item.arm for item in analysis.race.stopped} if analysis.race else set()
    arm_effects = [
        (arm, effect) for arm in arms if arm.name not in stopped_names and (effect := analysis.find(arm.name))
    ]
    candidate_effects = [(arm, effect) for arm, effect in arm_effects if effect.low is not None and may_be_best(effect)]
    if not any(effect.verdict == "faster" for _, effect in candidate_effects):
        return None
    candidates = Candidates(
        _log_ratio_views(analysis, measured, [arm for arm, _ in candidate_effects]),
        np.array([math.log(effect.low or 1.0) for _, effect in candidate_effects]),
        np.array([effect.verdict == "faster" for _, effect in candidate_effects], dtype=np.bool_),
        [_changed_setting_counts(arm, analysis.plan.arms, environments) for arm, _ in candidate_effects],
        analysis.plan.margin,
    )
    tests = len(arms) * (len(decision_blocks(analysis.plan)) + 1) if analysis.race else len(candidate_effects) - 1
    # What all looks may err is shared among them as that of the table is.
    spent = max(1, tests) * (1.0 - ALL_ANALYSES_LEVEL) / (1.0 - analysis.level)
    recommended_row, in_best_set, gain = recommend_candidate(candidates, spent)
    ranked = sorted(map(int, np.flatnonzero(in_best_set)), key=lambda at: -(candidate_effects[at][1].ratio or 0.0))
    names = tuple(candidate_effects[at][0].name for at in ranked)
    recommendable, mean = _recommendable_rows(candidates, in_best_set), candidates.differences.paired()[0].mean
    near = [at for at in recommendable if mean[at] >= mean[recommendable].max() - math.log1p(candidates.margin)]
    alike = sum(candidates.ranks[at] == candidates.ranks[recommended_row] for at in near)
    lead = _lead(candidates.differences, ranked[0], recommended_row, spent)
    ahead = (names[0], ratio_from_log(lead)) if math.isfinite(lead) else None
    outdone = not in_best_set[recommended_row]
    return Choice(
        candidate_effects[recommended_row][0].name,
        ratio_from_log(gain),
        names,
        len(recommendable),
        alike,
        outdone,
        len(near),
        ahead,
    )


def _lead(differences: Views, fastest: int, chosen: int, tests: float) -> float:
    """Return by how much, at most, one arm is faster than the chosen one, in log units; -inf: they are one."""
    if fastest == chosen:
        return -math.inf
    least = lead_lower_bounds(differences.rows([fastest]), differences.rows([chosen]), max(1, tests))
    return max(0.0, -float(least[0, 0]))


def _log_ratio_views(analysis: Analysis, measured: Measurements, arms: Sequence[Arm]) -> Views:
    """Return the log ratios of arms, each over its own reference, with and without slow trials."""
    index = {name: row for row, name in enumerate(measured.arms)}
    rows: list[tuple[Floats, Floats]] = []
    for arm in arms:
        family = next(family for family in families(analysis.plan) if arm in family.arms)
        metric = analysis.primary[family.arms[0].workload]
        arm_rows = [*(index[name] for name in family.copies), index[arm.name]]
        logs = metric.sign * logs_of(measured.table[metric.name][arm_rows])
        usual = np.where(analysis.slow[arm_rows], np.nan, logs)
        rows.append(
            (log_ratios_over_copies(logs, len(family.copies))[0], log_ratios_over_copies(usual, len(family.copies))[0])
        )
    all_logs, usual = (np.vstack(view) for view in zip(*rows, strict=True))
    return Views((all_logs, usual) if analysis.slow.any() else (all_logs,), measured.apart)


def _changed_setting_counts(arm: Arm, arms: Sequence[Arm], environments: Mapping[str, Environment]) -> tuple[int, int]:
    """Return how many levels, then how many variables, differ from the reference's."""
    runs = next((other.runs for other in arms if other.name == arm.reference), "")
    reference, environment = environments.get(runs), environments.get(arm.runs)
    if environment is None or reference is None:
        return 0, 0
    levels, variables = environment.levels, environment.variables
    return (
        sum(reference.levels.get(factor) != level for factor, level in levels.items()),
        sum(reference.variables.get(name) != value for name, value in variables.items()),
    )


def recommend_candidate(candidates: Candidates, tests: float) -> tuple[int, Bools, float]:
    """Return which candidate is recommended, who is in the best set, and the recommended one's log gain.

    The set holds whoever no other is surely better than (multiple comparisons with the best, Hsu 1984): the truly
    best one is left out in at most 5 % of runs. Recommended is one of those in it that are shown to be faster than the
    reference: the simplest of those that measured within the margin of the fastest of them; of equally simple ones the
    fastest. If some that is not shown to be faster than the reference (it has slow trials, or another reference) is
    surely better than all that are, it is one of these, and not in the set. One of ``candidates`` must be faster.
    """
    differences = candidates.differences
    in_best_set = ~surely_not_best(differences, differences, max(1, tests))
    numbers = differences.paired()[0]
    mean = numbers.mean
    able = _recommendable_rows(candidates, in_best_set)
    recommended_row = able[int(_picked(mean[able], candidates.ranks[able], candidates.margin))]
    rivals = [at for at, rank in enumerate(candidates.ranks) if rank == candidates.ranks[recommended_row] or at in able]
    raw_gain, low = float(mean[recommended_row]), float(candidates.low[recommended_row])
    cross_gain = cross_fitted_gain(differences.measured[rivals], candidates.ranks[rivals], candidates.margin)
    return recommended_row, in_best_set, told_gain(raw_gain, low, float(numbers.error[recommended_row]), cross_gain)


def told_gain(raw: float, low: float, error: float, crossed: float = math.inf) -> float:
    """Return the log gain to tell: less luck of being picked (``crossed``) and of being told only if ``low`` > 0."""
    fair = min(raw, crossed)
    return max(low, (fair + selection_corrected_gain(fair, low, error)) / 2)


def _picked(means: Floats, ranks: Ints, margin: float) -> Ints:
    """Return which of (..., m) is the simplest of those within the margin of the fastest, of equals the fastest."""
    near = means >= means.max(axis=-1, keepdims=True) - math.log1p(margin)
    simplest = np.where(near, ranks, ranks.max() + 1).min(axis=-1, keepdims=True)
    return np.asarray(np.where(near & (ranks == simplest), means, -np.inf).argmax(axis=-1))


def _recommendable_rows(candidates: Candidates, in_best_set: Bools) -> list[int]:
    """Return who may be recommended: who is shown to be faster, in the best set where any such one is."""
    eligible_rows = np.flatnonzero(candidates.faster & in_best_set)
    return [int(row) for row in (eligible_rows if eligible_rows.size else np.flatnonzero(candidates.faster))]


@lru_cache(maxsize=64)
def _random_halves(blocks: int) -> Bools:
    order = np.random.default_rng((_SEED, blocks)).random((_HALVES, blocks)).argsort(axis=1)
    return np.asarray(order < blocks // 2)


def cross_fitted_gain(differences: Floats, ranks: Ints, margin: float) -> float:
    """Return the mean log ratio of whoever is picked in one half of the blocks, measured in the other half.

    The mean over many random halves of (m, blocks). What picks is never what measures, so that luck in the one is not
    counted as gain in the other.
    """
    is_present = np.isfinite(differences)
    values = np.where(is_present, differences, 0.0)
    first_half = _random_halves(differences.shape[1])
    sums, counts = first_half @ values.T, first_half @ is_present.T.astype(np.float64)
    other_sums, other_counts = (~first_half) @ values.T, (~first_half) @ is_present.T.astype(np.float64)
    fastest_rows = _picked(np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf), ranks, margin)
    half_index = np.arange(len(first_half))
    has_other_half = other_counts[half_index, fastest_rows] > 0
    half_gains = (
        other_sums[half_index, fastest_rows][has_other_half] / other_counts[half_index, fastest_rows][has_other_half]
    )
    return float(half_gains.mean()) if half_gains.size else float(summarise_pairs(differences).mean.max())


def selection_corrected_gain(value: float, low: float, error: float) -> float:
    """Return the most likely log gain, none at least, given that it is told only because its lower bound is above 0.

    The conditional likelihood of a normal with standard deviation ``error`` cut off where ``low`` would be 0
    (Ghosh, Zou & Wright 2008): the gain at which the mean of what is told is ``value``.
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

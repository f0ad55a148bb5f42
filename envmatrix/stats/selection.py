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
from envmatrix.stats.effects import ALL_LOOKS, may_lead
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import Views, families, logs_of, over_copies, paired, ratio_of
from envmatrix.stats.racing import least_lead, looks, surely_not_best

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


def choose(
    analysis: Analysis, measured: Measurements, arms: Sequence[Arm], environments: Mapping[str, Environment]
) -> Choice | None:
    """Return the best set of the ``arms`` of one table; None where none is shown to be faster.

    Arms that did other work, or that fail more often than their reference, are in no set, nor are those that a race
    has stopped.
    """
    gone = {item.arm for item in analysis.race.stopped} if analysis.race else set()
    there = [(arm, effect) for arm in arms if arm.name not in gone and (effect := analysis.find(arm.name))]
    found = [(arm, effect) for arm, effect in there if effect.low is not None and may_lead(effect)]
    if not any(effect.verdict == "faster" for _, effect in found):
        return None
    candidates = Candidates(
        _differences(analysis, measured, [arm for arm, _ in found]),
        np.array([math.log(effect.low or 1.0) for _, effect in found]),
        np.array([effect.verdict == "faster" for _, effect in found], dtype=np.bool_),
        [_settings(arm, analysis.plan.arms, environments) for arm, _ in found],
        analysis.plan.margin,
    )
    tests = len(arms) * (len(looks(analysis.plan)) + 1) if analysis.race else len(found) - 1
    # What all looks may err is shared among them as that of the table is.
    spent = max(1, tests) * (1.0 - ALL_LOOKS) / (1.0 - analysis.level)
    chosen, within, gain = recommended(candidates, spent)
    ranked = sorted(map(int, np.flatnonzero(within)), key=lambda at: -(found[at][1].ratio or 0.0))
    names = tuple(found[at][0].name for at in ranked)
    able, mean = _able(candidates, within), candidates.differences.paired()[0].mean
    near = [at for at in able if mean[at] >= mean[able].max() - math.log1p(candidates.margin)]
    alike = sum(candidates.ranks[at] == candidates.ranks[chosen] for at in near)
    lead = _lead(candidates.differences, ranked[0], chosen, spent)
    ahead = (names[0], ratio_of(lead)) if math.isfinite(lead) else None
    outdone = not within[chosen]
    return Choice(found[chosen][0].name, ratio_of(gain), names, len(able), alike, outdone, len(near), ahead)


def _lead(differences: Views, fastest: int, chosen: int, tests: float) -> float:
    """Return by how much, at most, one arm is faster than the chosen one, in log units; -inf: they are one."""
    if fastest == chosen:
        return -math.inf
    least = least_lead(differences.rows([fastest]), differences.rows([chosen]), max(1, tests))
    return max(0.0, -float(least[0, 0]))


def _differences(analysis: Analysis, measured: Measurements, arms: Sequence[Arm]) -> Views:
    """Return the log ratios of arms, each over its own reference, with and without slow trials."""
    index = {name: row for row, name in enumerate(measured.arms)}
    rows: list[tuple[Floats, Floats]] = []
    for arm in arms:
        family = next(family for family in families(analysis.plan) if arm in family.arms)
        metric = analysis.primary[family.arms[0].workload]
        at = [*(index[name] for name in family.copies), index[arm.name]]
        logs = metric.sign * logs_of(measured.table[metric.name][at])
        usual = np.where(analysis.slow[at], np.nan, logs)
        rows.append((over_copies(logs, len(family.copies))[0], over_copies(usual, len(family.copies))[0]))
    every, usual = (np.vstack(view) for view in zip(*rows, strict=True))
    return Views((every, usual) if analysis.slow.any() else (every,), measured.apart)


def _settings(arm: Arm, arms: Sequence[Arm], environments: Mapping[str, Environment]) -> tuple[int, int]:
    """Return how many levels, then how many variables, differ from the reference's."""
    runs = next((other.runs for other in arms if other.name == arm.reference), "")
    reference, own = environments.get(runs), environments.get(arm.runs)
    if own is None or reference is None:
        return 0, 0
    levels, variables = own.levels, own.variables
    return (
        sum(reference.levels.get(factor) != level for factor, level in levels.items()),
        sum(reference.variables.get(name) != value for name, value in variables.items()),
    )


def recommended(candidates: Candidates, tests: float) -> tuple[int, Bools, float]:
    """Return which candidate is recommended, who is in the best set, and the recommended one's log gain.

    The set holds whoever no other is surely better than (multiple comparisons with the best, Hsu 1984): the truly
    best one is left out in at most 5 % of runs. Recommended is one of those in it that are shown to be faster than the
    reference: the simplest of those that measured within the margin of the fastest of them; of equally simple ones the
    fastest. If some that is not shown to be faster than the reference (it has slow trials, or another reference) is
    surely better than all that are, it is one of these, and not in the set. One of ``candidates`` must be faster.
    """
    differences = candidates.differences
    within = ~surely_not_best(differences, differences, max(1, tests))
    numbers = differences.paired()[0]
    mean = numbers.mean
    able = _able(candidates, within)
    chosen = able[int(_picked(mean[able], candidates.ranks[able], candidates.margin))]
    rivals = [at for at, rank in enumerate(candidates.ranks) if rank == candidates.ranks[chosen] or at in able]
    raw, low = float(mean[chosen]), float(candidates.low[chosen])
    crossed = cross_fitted(differences.measured[rivals], candidates.ranks[rivals], candidates.margin)
    return chosen, within, told_gain(raw, low, float(numbers.error[chosen]), crossed)


def told_gain(raw: float, low: float, error: float, crossed: float = math.inf) -> float:
    """Return the log gain to tell: less luck of being picked (``crossed``) and of being told only if ``low`` > 0."""
    fair = min(raw, crossed)
    return max(low, (fair + given_shown(fair, low, error)) / 2)


def _picked(means: Floats, ranks: Ints, margin: float) -> Ints:
    """Return which of (..., m) is the simplest of those within the margin of the fastest, of equals the fastest."""
    near = means >= means.max(axis=-1, keepdims=True) - math.log1p(margin)
    simplest = np.where(near, ranks, ranks.max() + 1).min(axis=-1, keepdims=True)
    return np.asarray(np.where(near & (ranks == simplest), means, -np.inf).argmax(axis=-1))


def _able(candidates: Candidates, within: Bools) -> list[int]:
    """Return who may be recommended: who is shown to be faster, in the best set where any such one is."""
    able = np.flatnonzero(candidates.faster & within)
    return [int(at) for at in (able if able.size else np.flatnonzero(candidates.faster))]


@lru_cache(maxsize=64)
def _halves(blocks: int) -> Bools:
    order = np.random.default_rng((_SEED, blocks)).random((_HALVES, blocks)).argsort(axis=1)
    return np.asarray(order < blocks // 2)


def cross_fitted(differences: Floats, ranks: Ints, margin: float) -> float:
    """Return the mean log ratio of whoever is picked in one half of the blocks, measured in the other half.

    The mean over many random halves of (m, blocks). What picks is never what measures, so that luck in the one is not
    counted as gain in the other.
    """
    there = np.isfinite(differences)
    values = np.where(there, differences, 0.0)
    first = _halves(differences.shape[1])
    sums, counts = first @ values.T, first @ there.T.astype(np.float64)
    rest, left = (~first) @ values.T, (~first) @ there.T.astype(np.float64)
    picked = _picked(np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf), ranks, margin)
    at = np.arange(len(first))
    known = left[at, picked] > 0
    found = rest[at, picked][known] / left[at, picked][known]
    return float(found.mean()) if found.size else float(paired(differences).mean.max())


def given_shown(value: float, low: float, error: float) -> float:
    """Return the most likely log gain, none at least, given that it is told only because its lower bound is above 0.

    The conditional likelihood of a normal with standard deviation ``error`` cut off where ``low`` would be 0
    (Ghosh, Zou & Wright 2008): the gain at which the mean of what is told is ``value``.
    """
    if not error > 0 or value <= 0:
        return max(0.0, value)
    from scipy.special import log_ndtr

    def told(gain: float) -> float:
        beyond = (value - low - gain) / error
        return gain + error * math.exp(-0.5 * (beyond**2 + math.log(2 * math.pi)) - float(log_ndtr(-beyond)))

    below, above = 0.0, value
    for _ in range(50):
        middle = (below + above) / 2
        below, above = (below, middle) if told(middle) > value else (middle, above)
    return below

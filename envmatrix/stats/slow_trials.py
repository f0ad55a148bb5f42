"""Slow trials: some processes of an environment that are slower than its others, as if there were two kinds.

What rare slow processes cost on average cannot be known from runs in which none happened, and no rule on the data
mends that. So what is estimated is the effect of a process that is not slow, how often one is slow is told beside it,
and where slow ones were seen every claim must hold with them and without them (docs/noise.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Plan
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import logs_of, ratio_from_log

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
#: A comparison with an arm that has slow trials has no verdict, and such an arm leaves no race, below so many blocks.
LEAST_BLOCKS = 20
#: How often trials of one normal population are taken for two.
ERROR = 0.002
_FEWEST = 6
_LEAST_SHOWN = 0.0095
_MAX_OTHER_ARMS = 12
#: From here on nothing is told in percent.
_FAR = 4.0
_TIE = 1e-9
_DRAWS, _MOST_DRAWN, _SEED = 20_000, 2_000_000, 20_260_104


@dataclass(frozen=True)
class SlowTrials:
    """``count`` of an arm's ``trials`` are slow: they took ``slower`` longer than its others (0.25: 25 %).

    Of what is no speed they are worse by that much.
    """

    count: int
    trials: int
    slower: float
    is_speed: bool = True

    @property
    def slowdown_text(self) -> str:
        """Return '25% slower', of little that it is not nothing, and of much how many times as slow."""
        if self.slower >= _FAR:
            return f"{1 + self.slower:.3g}x {'slower' if self.is_speed else 'worse'}"
        size = f"{self.slower:.0%}" if self.slower >= _LEAST_SHOWN else f"{100 * self.slower:.1g}%"
        return f"{size} {'slower' if self.is_speed else 'worse'}"

    @property
    def share(self) -> tuple[float, float]:
        """Return the 95 % interval of the share of processes that are slow (Clopper & Pearson 1934)."""
        from scipy.special import betaincinv

        count, other_count = self.count, self.trials - self.count
        low = float(betaincinv(count, other_count + 1, 0.025)) if count else 0.0
        return low, float(betaincinv(count + 1, other_count, 0.975)) if other_count else 1.0

    def __str__(self) -> str:
        """Return '4 of 10 trials are 25 % slower'."""
        return f"{self.count} of {self.trials} trials {'is' if self.count == 1 else 'are'} {self.slowdown_text}"


def find_slow_trials(logs: Floats) -> Bools:
    """Return which trials of (arms, blocks) logs, better upwards, are slow; NaN is none.

    What a block shares is taken off first. The slow ones of an arm are the lower part of the best split of its trials
    in two (Engelman & Hartigan 1969), if they are fewer than half (of two arms, one slow in half of the blocks cannot
    be told from the other fast in them) and that split is better than that of one normal population would be in all
    but ``ERROR`` of cases. The clearest arm comes first, as its slow trials would pass for fast ones of the others;
    arms that are equally clear come together, so that their order does not matter.
    """
    slow = np.zeros(logs.shape, dtype=np.bool_)
    remaining_rows = set(range(len(logs))) if logs.size else set()
    while remaining_rows:
        residuals = _without_block_effects(logs, slow)
        slow_parts = {row: _slow_part(residuals[row]) for row in remaining_rows}
        clearest = max(beyond for _, beyond in slow_parts.values())
        if clearest <= 1.0:
            break
        for row in [candidate for candidate, (_, beyond) in slow_parts.items() if beyond >= clearest * (1.0 - _TIE)]:
            slow[row, slow_parts[row][0]] = True
            remaining_rows.remove(row)
    return slow


def slow_trial_mask(plan: Plan, measured: Measurements, primary: Mapping[str, Metric]) -> Bools:
    """Return which trials (arms, blocks) are slow in their primary metric, each judged among those of its reference."""
    slow, judged_rows = np.zeros(measured.attempted.shape, dtype=np.bool_), set[int]()
    for reference in dict.fromkeys(arm.reference for arm in plan.arms if arm.reference in measured.arms):
        metric = primary[next(arm.workload for arm in plan.arms if arm.reference == reference)]
        arm_rows = [row for row, arm in enumerate(plan.arms) if reference in (arm.name, arm.reference)]
        slow_masks = find_slow_trials(metric.sign * logs_of(measured.table[metric.name][arm_rows]))
        for row, mask in zip(arm_rows, slow_masks, strict=True):
            slow[row] = slow[row] if row in judged_rows else mask
        judged_rows.update(arm_rows)
    return slow


def needs_more_blocks(plan: Plan, slow: Bools, arms: Collection[str], blocks: int) -> bool:
    """Whether a comparison of ``arms`` has no verdict yet: what slow trials do to it is the same on either side."""
    if blocks >= LEAST_BLOCKS or not slow.any():
        return False
    return bool(slow[[arm.name in arms for arm in plan.arms]].any())


def with_and_without_slow(logs: Floats, slow: Bools) -> tuple[Floats, ...]:
    """Return the logs as they are, and those without the ``slow`` trials where there are any: see ``Views``."""
    return (logs, np.where(slow, np.nan, logs)) if slow.any() else (logs,)


def describe_slow_trials(
    plan: Plan, measured: Measurements, primary: Mapping[str, Metric], slow: Bools
) -> Mapping[str, SlowTrials]:
    """Return what is to be told of the arms that have ``slow`` trials."""
    metrics = [primary[arm.workload] for arm in plan.arms]
    logs = np.array([m.sign * logs_of(measured.table[m.name][row]) for row, m in enumerate(metrics)])
    slow_by_arm = {}
    for row in np.flatnonzero(slow.any(axis=1)):
        residuals, mask = _without_block_effects(logs, slow)[row], slow[row]
        others = np.isfinite(residuals) & ~mask
        log_slowdown = float(residuals[others].mean() - residuals[mask].mean())
        slow_count, trial_count = int(mask.sum()), int((others | mask).sum())
        slow_by_arm[plan.arms[row].name] = SlowTrials(
            slow_count, trial_count, ratio_from_log(log_slowdown) - 1.0, metrics[row].is_speed
        )
    return slow_by_arm


def _without_block_effects(logs: Floats, slow: Bools) -> Floats:
    """Take off each arm's median, then each block's: the median of the OTHER arms, which it cannot have moved."""
    residuals = logs - _median(logs, 1)[:, None]
    if len(residuals) < 2:
        return residuals
    usual = np.where(slow, np.nan, residuals)
    return residuals - np.nan_to_num(_median(usual[_other_arms(len(residuals))], 1))


@lru_cache(maxsize=64)
def _other_arms(arms: int) -> NDArray[np.int64]:
    """Return, for each arm, which other ones tell what its block shares."""
    return np.array([[row for row in range(arms) if row != arm][:_MAX_OTHER_ARMS] for arm in range(arms)])


def _median(values: Floats, axis: int) -> Floats:
    """Return the median over what is there; numpy's nanmedian warns where nothing is."""
    if np.isfinite(values).all():
        return np.asarray(np.median(values, axis=axis))
    ordered, count = np.sort(values, axis=axis), np.isfinite(values).sum(axis=axis, keepdims=True)
    low, high = (np.take_along_axis(ordered, np.maximum(rank, 0) // 2, axis) for rank in (count - 1, count))
    return np.asarray(np.where(count > 0, (low + high) / 2, np.nan).squeeze(axis))


def _slow_part(values: Floats) -> tuple[NDArray[np.int64], float]:
    """Return where the slow ones of an arm's trials are, and how far beyond chance (1) their split is."""
    present = np.flatnonzero(np.isfinite(values))
    if present.size < _FEWEST:
        return present[:0], 0.0
    ordered = present[np.argsort(values[present], kind="stable")]
    usual, critical_ratio = _null_splits(ordered.size)
    ratios = _split_statistics(values[ordered][None, :])[0] / np.array(usual)
    best_split = int(ratios.argmax())
    return ordered[: best_split + 1], float(ratios[best_split]) / critical_ratio


def _split_statistics(ordered: Floats) -> Floats:
    """Return how well (sets, n) ordered numbers are split after the first, second, ... below half: F of two groups."""
    n = ordered.shape[1]
    first = np.arange(1, (n + 1) // 2)
    sums = np.cumsum(ordered, axis=1)
    lower, total = sums[:, : first.size], sums[:, -1:]
    between = ((total - lower) / (n - first) - lower / first) ** 2 * first * (n - first) / n
    squares = (ordered**2).sum(axis=1, keepdims=True) - total**2 / n
    return np.asarray(between * (n - 2) / np.maximum(squares - between, 1e-12 * squares + 1e-300))


@lru_cache(maxsize=256)
def _null_splits(n: int) -> tuple[Sequence[float], float]:
    """Return, for n normal numbers, how good splits are in 99 of 100 sets, and the best split's quantile over that."""
    rng = np.random.default_rng((_SEED, n))
    samples = np.sort(rng.standard_normal((max(5000, min(_DRAWS, _MOST_DRAWN // n)), n)), axis=1)
    splits = _split_statistics(samples)
    usual = np.quantile(splits, 0.99, axis=0)
    return tuple(usual.tolist()), float(np.quantile((splits / usual).max(axis=1), 1.0 - ERROR))

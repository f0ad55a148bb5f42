"""Slow trials (outliers): processes of an environment that are slower than the others, as if of two kinds.

No analysis can know the mean cost of rare slow processes from runs without any. So the effect is that of a process that
is not slow, and the share of slow ones is reported with it. If there are any, every conclusion must be true with them
and without them (docs/noise.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from envmatrix.plan import Plan
from envmatrix.stats.array_types import Bools, Floats, Integers
from envmatrix.stats.measurements import Measurements, finite_medians
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import logs_of, ratio_from_log

#: Below this many blocks, an arm with slow trials has no verdict and leaves no race.
LEAST_BLOCKS = 20
#: How often trials of one normal population are taken for two.
ERROR = 0.002
_FEWEST = 6
_LEAST_SHOWN = 0.0095
_MAX_OTHER_ARMS = 12
#: From this slowdown on, a factor is shown instead of percent.
_FAR = 4.0
_TIE = 1e-9
_DRAWS, _FEWEST_DRAWS, _MOST_DRAWN, _SEED = 20_000, 5_000, 2_000_000, 20_260_104


@dataclass(frozen=True)
class SlowTrials:
    """``count`` of an arm's ``trials`` are slow: they took ``slower`` longer than the others (0.25: 25 %).

    For a metric that is not a speed, they are worse by that much.
    """

    count: int
    trials: int
    slower: float
    is_speed: bool = True

    @property
    def slowdown_text(self) -> str:
        """The slowdown as text: '25% slower', with more digits if it is tiny, or a factor if it is large."""
        if self.slower >= _FAR:
            return f"{1 + self.slower:.3g}x {'slower' if self.is_speed else 'worse'}"
        size = f"{self.slower:.0%}" if self.slower >= _LEAST_SHOWN else f"{100 * self.slower:.1g}%"
        return f"{size} {'slower' if self.is_speed else 'worse'}"

    @property
    def share_interval(self) -> tuple[float, float]:
        """The 95 % interval of the share of slow processes (Clopper & Pearson 1934)."""
        from scipy.special import betaincinv

        count, other_count = self.count, self.trials - self.count
        low = float(betaincinv(count, other_count + 1, 0.025)) if count else 0.0
        return low, float(betaincinv(count + 1, other_count, 0.975)) if other_count else 1.0

    def __str__(self) -> str:
        """Return '4 of 10 trials are 25% slower'."""
        return f"{self.count} of {self.trials} trials {'is' if self.count == 1 else 'are'} {self.slowdown_text}"


def find_slow_trials(logs: Floats) -> Bools:
    """Return a mask of the slow trials in (arms, blocks) logs, higher is better; NaN is not slow.

    Effects shared by a block are removed first. An arm's slow trials are the lower part of the best split of its trials
    in two (Engelman & Hartigan 1969). They must be fewer than half: with two arms, slow halves of one look like fast
    halves of the other. The split must be better than that of one normal population in all but ``ERROR`` of cases. The
    clearest arm is handled first, as its slow trials make others look fast. Equally clear arms are handled together, so
    that their order does not matter.
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
    """Return a mask (arms, blocks) of slow trials in the primary metric, judged among arms with the same reference."""
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
    """Return whether a comparison of ``arms`` has too few blocks for a verdict, as one of them has slow trials."""
    if blocks >= LEAST_BLOCKS or not slow.any():
        return False
    return bool(slow[[arm.name in arms for arm in plan.arms]].any())


def with_and_without_slow(logs: Floats, slow: Bools) -> tuple[Floats, ...]:
    """Return the logs as measured and, if there are ``slow`` trials, the logs without them (see ``Views``)."""
    return (logs, np.where(slow, np.nan, logs)) if slow.any() else (logs,)


def describe_slow_trials(
    plan: Plan, measured: Measurements, primary: Mapping[str, Metric], slow: Bools
) -> Mapping[str, SlowTrials]:
    """Return a description of the slow trials of each arm that has any."""
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
    """Remove each arm's median, then each block's median over the other arms, which the arm cannot influence."""
    residuals = logs - finite_medians(logs, 1)[:, None]
    if len(residuals) < 2:
        return residuals
    usual = np.where(slow, np.nan, residuals)
    return residuals - np.nan_to_num(finite_medians(usual[_other_arms(len(residuals))], 1))


@lru_cache(maxsize=64)
def _other_arms(arms: int) -> Integers:
    """Return, for each arm, the other arms used to estimate block effects."""
    return np.array([[row for row in range(arms) if row != arm][:_MAX_OTHER_ARMS] for arm in range(arms)])


def _slow_part(values: Floats) -> tuple[Integers, float]:
    """Return the positions of an arm's slow trials, and how far their split exceeds chance (1)."""
    present = np.flatnonzero(np.isfinite(values))
    if present.size < _FEWEST:
        return present[:0], 0.0
    ordered = present[np.argsort(values[present], kind="stable")]
    usual, critical_ratio = _null_splits(ordered.size)
    ratios = _split_statistics(values[ordered][None, :])[0] / usual
    best_split = int(ratios.argmax())
    return ordered[: best_split + 1], float(ratios[best_split]) / critical_ratio


def _split_statistics(ordered: Floats) -> Floats:
    """Return the F statistic of each split of (sets, n) ordered numbers after the first, second, ... below half."""
    n = ordered.shape[1]
    sums, squares = np.cumsum(ordered, axis=1), (ordered**2).sum(axis=1, keepdims=True)
    return _quality(n, np.arange(1, (n + 1) // 2), sums, squares)


def _quality(n: int, first: Integers, sums: Floats, squares: Floats) -> Floats:
    """Return F of the two groups that splits after the ``first`` numbers make, of sums up to them and to all."""
    lower, total = sums[:, : first.size], sums[:, -1:]
    between = ((total - lower) / (n - first) - lower / first) ** 2 * first * (n - first) / n
    squares = squares - total**2 / n
    return np.asarray(between * (n - 2) / np.maximum(squares - between, 1e-12 * squares + 1e-300))


@lru_cache(maxsize=256)
def _null_splits(n: int) -> tuple[Floats, float]:
    """Return, for n normal numbers, the 99 % quantile of each split and the best split's critical ratio to it."""
    if n > _MOST_DRAWN // _FEWEST_DRAWS:
        return _null_of_many(n)
    rng = np.random.default_rng((_SEED, n))
    samples = np.sort(rng.standard_normal((min(_DRAWS, _MOST_DRAWN // n), n)), axis=1)
    splits = _split_statistics(samples)
    usual = np.quantile(splits, 0.99, axis=0)
    return usual, float(np.quantile((splits / usual).max(axis=1), 1.0 - ERROR))


def _null_of_many(n: int) -> tuple[Floats, float]:
    """Return the same for more numbers than can be drawn: time and memory hardly grow with n.

    Only some of the ordered numbers are drawn, close to each other at both ends. Those between two of them are
    replaced by their conditional mean and mean square, which leaves out a variance far below that of the ends.
    """
    at = _candidate_ranks(n)
    sums, squares = _ordered_sums(n, at)
    splits = _quality(n, at[2 * at < n], sums, squares)
    usual = np.quantile(splits, 0.99, axis=0)
    most = float(np.quantile((splits / usual).max(axis=1), 1.0 - ERROR))
    first = at[: usual.size]
    return np.interp(np.log(np.arange(1, (n + 1) // 2)), np.log(first), usual), most


def _candidate_ranks(n: int) -> Integers:
    """Return ranks among n numbers: each of the first and last 20, then 5 % apart, n among them."""
    lower = [1]
    while 2 * (rank := max(lower[-1] + 1, int(1.05 * lower[-1]))) < n:
        lower.append(rank)
    return np.array([*lower, *(n - rank for rank in reversed(lower)), n])


def _ordered_sums(n: int, at: Integers) -> tuple[Floats, Floats]:
    """Return, for sets of n ordered normal numbers, their sums up to the ranks ``at``, and their sums of squares.

    Ranks of uniform numbers are sums of exponential gaps over the sum of all gaps (Devroye 1986, chapter V).
    """
    from scipy.special import ndtri

    chance = np.random.default_rng((_SEED, n))
    count = np.diff(at, prepend=0)
    gaps = np.cumsum(chance.standard_gamma(count, (_FEWEST_DRAWS, at.size)), axis=1)
    places = gaps / (gaps[:, -1:] + chance.standard_exponential((_FEWEST_DRAWS, 1)))
    ends = ndtri(places)
    density, inside = np.exp(-(ends**2) / 2) / np.sqrt(2 * np.pi), np.diff(places, axis=1, prepend=0)
    mean = -np.diff(density, axis=1, prepend=0) / inside
    square = 1 - np.diff(ends * density, axis=1, prepend=0) / inside
    sums = np.cumsum(ends + (count - 1) * mean, axis=1)
    return sums, (ends**2 + (count - 1) * square).sum(axis=1, keepdims=True)

"""How sure a mean over blocks is where the machine has slow phases that last longer than a block.

An environment that such a phase slows more than its reference has paired differences that are alike in neighbouring
blocks: they are fewer independent numbers than there are blocks. What a mean over the whole run makes of that is seen
in the slow parts of the series alone: its components along cosines whose period is at least twice a phase (the
equal-weighted cosine estimator of the long-run variance; Müller 2007; Lazarus, Lewis, Stock & Watson 2018). B cosines
behave as B + 1 independent blocks do, exactly so where blocks ARE independent. Where blocks are further apart than a
phase lasts all cosines count, and the error is the usual one. A short run has so few slow cosines that to count those
alone would double every interval: there they do so where they stand out from the fast ones (an F test).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]
#: A slow phase of a minute is nearly independent of what was so long before: it makes 5 % of intervals miss.
PHASE_S = 140.0
#: Fewer phases than these tell too little of how they differ: then slow cosines count alone only where they stand out,
#: and the report says so.
LEAST_PHASES = 5
#: How long the blocks of a run must span, in whole minutes.
ENOUGH_MINUTES = math.ceil(LEAST_PHASES * PHASE_S / 60)
#: What is said of a run that is long enough: longer phases make more than 5 % of intervals miss the mean over all of
#: them, however long it is, and only the mean over its own holds (docs/noise.md).
LONGER = "If the machine has slow phases longer than a minute, the 95 % hold for the machine as it was then."
#: How often slow cosines stand out where blocks are independent, each time that they are tested.
PROMINENCE_ERROR = 0.1
#: How many of them at least: three that stand out, of seven or eight blocks, are nearly always chance, and would make
#: one interval of ten three times as wide (docs/noise.md).
_FEWEST = 4
#: Up to how many intervals phases of a minute make miss the mean over a longer time, in a run of fewer minutes than
#: these (docs/noise.md).
_MISS_SHARES = ((3.0, "1 of 2"), (6.0, "1 of 4"), (float("inf"), "1 of 8"))


def apart(begins: Floats) -> Floats:
    """Return by how much of a phase each block began before the next one, at most 1, of when blocks began (s).

    The last block counts as the one before it; where a time is not known blocks count as independent.
    """
    if begins.size < 2:
        return np.ones(begins.size)
    gaps = np.clip(np.diff(begins) / PHASE_S, 0.0, 1.0)
    gaps = np.where(np.isfinite(gaps), gaps, 1.0)
    return np.append(gaps, gaps[-1])


def too_short(far: Floats) -> bool:
    """Whether a run, of blocks so far ``apart``, saw too few phases to allow for how they differ."""
    return bool(far.size and far.min() < 1.0 and int(far.sum() + 1e-9) < min(LEAST_PHASES, far.size - 1))


def short_run_note(far: Floats) -> str:
    """Return what is said beside the answer of every run: which slow phases of the machine it does not allow for.

    The shares are the worst of docs/noise.md: phases of a minute, blocks of 10 s or more.
    """
    if not too_short(far):
        return LONGER
    miss_share = next(miss_share for below, miss_share in _MISS_SHARES if round(_spanned_minutes(far)) < below)
    return (
        f"Short run: its blocks span {format_span(far)}, and the 95 % hold for the machine as it was then. If it has "
        f"phases of a minute that slow one environment more than another, up to {miss_share} intervals miss the "
        "mean over a "
        "longer time."
    )


def format_span(far: Floats) -> str:
    """Return how long the blocks took, less what is longer than a phase of every pause; never as long as is wanted."""
    minutes = min(round(_spanned_minutes(far)), ENOUGH_MINUTES - 1) if too_short(far) else round(_spanned_minutes(far))
    return f"{minutes} minutes" if minutes > 1 else "a minute" if minutes else "less than a minute"


def _spanned_minutes(far: Floats) -> float:
    return float(far.sum()) * PHASE_S / 60


def standard_errors(parts: Floats, there: Bools, far: Floats | None) -> tuple[Floats, Integers]:
    """Return the standard error of each row's sum, and of how many independent blocks it is worth.

    ``parts`` (rows, blocks) is what each block adds to an estimate, less the mean of that, 0 where it adds nothing;
    ``there`` says where it does; ``far`` is ``apart`` of the blocks (None: they are independent). NaN below 2 blocks.
    """
    count = there.sum(axis=1)
    error = np.sqrt((parts**2).sum(axis=1) * count / np.where(count > 1, count - 1, np.nan))
    units = count.astype(np.int64)
    if far is None or far.min(initial=1.0) >= 1.0:
        return error, units
    for mask in there[:1] if there.all() else np.unique(there, axis=0):
        cosine_count, blocks = int(far[mask].sum() + 1e-9), int(mask.sum())
        if cosine_count >= blocks - 1:
            continue
        rows = (there == mask).all(axis=1)
        if cosine_count >= LEAST_PHASES:
            error[rows] = slow_cosine_error(parts[rows][:, mask], cosine_count)
            units[rows] = cosine_count + 1
        else:
            error[rows], units[rows] = _prominent_cosine_errors(parts[rows][:, mask], cosine_count)
    return error, units


def slow_cosine_error(parts: Floats, cosine_count: int) -> Floats:
    """Return the standard error of each row's sum, as the slowest cosines alone tell it."""
    return np.asarray(np.sqrt(_cosine_variances(parts, cosine_count).mean(axis=1)))


def _prominent_cosine_errors(parts: Floats, cosine_count: int) -> tuple[Floats, Integers]:
    """Return errors, and what they are worth, of the slowest cosines that stand out from the others; else of all."""
    squares = _cosine_variances(parts, parts.shape[1] - 1)
    cosine_total = squares.shape[1]
    error, units = np.sqrt(squares.mean(axis=1)), np.full(len(parts), cosine_total + 1)
    smallest_count = max(_FEWEST, cosine_count)
    for count in [
        smallest_count << doubled for doubled in range(cosine_total) if smallest_count << doubled <= cosine_total // 2
    ][::-1]:
        slow, fast = squares[:, :count].mean(axis=1), squares[:, count:].mean(axis=1)
        is_prominent = slow > _f_quantile(count, cosine_total - count) * fast
        error, units = np.where(is_prominent, np.sqrt(slow), error), np.where(is_prominent, count + 1, units)
    return error, units


@lru_cache(maxsize=1024)
def _f_quantile(slow: int, fast: int) -> float:
    from scipy.special import fdtri

    return float(fdtri(slow, fast, 1.0 - PROMINENCE_ERROR))


def _cosine_variances(parts: Floats, cosine_count: int) -> Floats:
    """Return twice the squares of rows along the slowest cosines: each estimates the variance of a row's sum."""
    return np.asarray(2.0 * (parts @ _cosines(parts.shape[1], cosine_count).T) ** 2)


@lru_cache(maxsize=16)
def _cosines(blocks: int, cosine_count: int) -> Floats:
    position = (np.arange(blocks) + 0.5) / blocks
    return np.asarray(np.cos(np.pi * np.arange(1, cosine_count + 1)[:, None] * position))

"""Standard errors of means over blocks if the machine has slow phases that last longer than a block.

If such a phase slows an environment more than its reference, paired differences of neighbouring blocks are alike. They
then contain fewer independent numbers than there are blocks. The effect on the mean shows in the slow parts of the
series: its components along cosines with a period of at least two phases. This is the equal-weighted cosine estimator
of the long-run variance (Müller 2007; Lazarus, Lewis, Stock & Watson 2018). B cosines are worth B + 1 independent
blocks, exactly so if blocks are independent. If blocks are further apart than a phase, all cosines count, and the error
is the usual one. In a short run, the few slow cosines alone would double every interval: they count alone only if they
stand out (F test).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from envmatrix.stats.array_types import Bools, Floats, Integers

#: Seconds after which slow phases of a minute are nearly independent; 5 % of intervals then miss.
PHASE_S = 140.0
#: With fewer phases, their differences are too uncertain: slow cosines count alone only if they stand out, and the
#: report has a note.
LEAST_PHASES = 5
#: Time that the blocks of a run must span, in whole minutes.
ENOUGH_MINUTES = math.ceil(LEAST_PHASES * PHASE_S / 60)
#: Note for a run that is long enough. Longer phases make more than 5 % of intervals miss the long-term mean, but not
#: the mean over the run itself (docs/noise.md).
LONGER = (
    "The intervals describe this machine during this run. If the speed of the machine changes for minutes at a time, "
    "other runs may have ratios outside these intervals."
)
#: How often slow cosines stand out by chance in each test, if blocks are independent.
PROMINENCE_ERROR = 0.1
#: Fewest slow cosines that can stand out. Three, of seven or eight blocks, nearly always do so by chance, and would
#: make one interval in ten three times as wide (docs/validation/simulations-noise.md).
_FEWEST = 4
#: Above so many blocks a Fourier transform replaces the matrix of cosines, which grows with their square.
_MOST_MULTIPLIED = 512
#: Largest share of intervals that miss the long-term mean due to phases of a minute, for runs below so many minutes
#: (docs/noise.md).
_MISS_SHARES = ((3.0, "one in two"), (6.0, "one in four"), (float("inf"), "one in eight"))


def block_gaps(begins: Floats) -> Floats:
    """Return the time from each block to the next as a fraction of a phase, at most 1; ``begins`` are in seconds.

    The last block counts as the one before it; blocks with an unknown time count as independent.
    """
    if begins.size < 2:
        return np.ones(begins.size)
    gaps = np.clip(np.diff(begins) / PHASE_S, 0.0, 1.0)
    gaps = np.where(np.isfinite(gaps), gaps, 1.0)
    return np.append(gaps, gaps[-1])


def too_short(gaps: Floats) -> bool:
    """Return whether a run saw too few phases to allow for their differences; ``gaps``: its ``block_gaps``."""
    return bool(gaps.size and gaps.min() < 1.0 and int(gaps.sum() + 1e-9) < min(LEAST_PHASES, gaps.size - 1))


def slow_phases_note(gaps: Floats) -> str:
    """Return the note shown with every answer: which slow phases of the machine the run does not allow for.

    The shares are the worst of docs/noise.md: phases of a minute, blocks of 10 s or more.
    """
    if not too_short(gaps):
        return LONGER
    miss_share = next(miss_share for below, miss_share in _MISS_SHARES if round(_spanned_minutes(gaps)) < below)
    return (
        f"Short run ({format_span(gaps)}): the intervals hold for that time. The average speed-up over hours may "
        f"lie outside up to {miss_share} of them, because machines have slow phases."
    )


def format_span(gaps: Floats) -> str:
    """Return the time that the blocks span as text, with long pauses shortened; a short run never shows enough time."""
    minutes = round(_spanned_minutes(gaps))
    if too_short(gaps):
        minutes = min(minutes, ENOUGH_MINUTES - 1)
    return f"{minutes} minutes" if minutes > 1 else "a minute" if minutes else "less than a minute"


def _spanned_minutes(gaps: Floats) -> float:
    return float(gaps.sum()) * PHASE_S / 60


def standard_errors_of_row_sums(parts: Floats, there: Bools, gaps: Floats | None) -> tuple[Floats, Integers]:
    """Return the standard error of each row's sum, and the number of independent blocks it is worth.

    ``parts`` (rows, blocks) is each block's contribution to an estimate, less the mean, or 0 if ``there`` is False.
    ``gaps``: their ``block_gaps`` (None: they are independent). Errors are NaN below 2 blocks.
    """
    count = there.sum(axis=1)
    error = np.sqrt((parts**2).sum(axis=1) * count / np.where(count > 1, count - 1, np.nan))
    units = count.astype(np.int64)
    if gaps is None or gaps.min(initial=1.0) >= 1.0:
        return error, units
    for mask in {row.tobytes(): row for row in there}.values():
        cosine_count, blocks = int(gaps[mask].sum() + 1e-9), int(mask.sum())
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
    """Return the standard error of each row's sum from the slowest cosines alone."""
    return np.asarray(np.sqrt(_cosine_variances(parts, cosine_count).mean(axis=1)))


def _prominent_cosine_errors(parts: Floats, cosine_count: int) -> tuple[Floats, Integers]:
    """Return errors and their worth from the slowest cosines if they stand out, otherwise from all cosines."""
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
    if parts.shape[1] <= _MOST_MULTIPLIED:
        return np.asarray(2.0 * (parts @ _cosines(parts.shape[1], cosine_count).T) ** 2)
    from scipy.fft import dct

    return np.asarray(0.5 * dct(parts, axis=1)[:, 1 : cosine_count + 1] ** 2)  # scipy's cosines are twice as long


@lru_cache(maxsize=16)
def _cosines(blocks: int, cosine_count: int) -> Floats:
    position = (np.arange(blocks) + 0.5) / blocks
    return np.asarray(np.cos(np.pi * np.arange(1, cosine_count + 1)[:, None] * position))

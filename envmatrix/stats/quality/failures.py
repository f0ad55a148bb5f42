"""Failed trials: whether an arm fails more often than its reference, and worst-case bounds for missing numbers.

Numbers are not missing at random if slow trials time out, so no distribution is assumed (docs/noise.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envmatrix.stats.array_types import Bools, Floats
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import logs_of, reference_logs
from envmatrix.stats.trial_text_counts import ArmFacts

BROKEN_OUTCOMES = ("failed", "invalid", "timed_out")


def count_broken_and_run(facts: Sequence[ArmFacts]) -> tuple[int, int]:
    """Return how many trials broke (failed, invalid or timed out), and how many ran."""
    broken = sum(fact.outcomes[name] for fact in facts for name in BROKEN_OUTCOMES)
    return broken, broken + sum(fact.outcomes["ok"] for fact in facts)


def has_larger_failed_share(measured: Measurements, arms: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether a larger share of the trials of ``arms`` failed than of ``others``, such as a reference's copies.

    There is no test: one failure of ten against none of twenty has p = 0.33, so most trials would have to fail.
    """
    (broken, ran), (others_broken, others_ran) = (
        count_broken_and_run([measured.facts[name] for name in names]) for names in (arms, others)
    )
    return broken * max(1, others_ran) > others_broken * ran


def surely_slower(at_best: float | None, reference: Sequence[ArmFacts], limit: float = 1.0) -> bool:
    """Return whether an arm is slower even ``at_best``, with each failed trial of its reference as slow as possible.

    It never is if one timed out, since its full time is unknown.
    """
    return at_best is not None and at_best < limit and not any(fact.outcomes["timed_out"] for fact in reference)


def fill_with_slowest(differences: Floats, attempted: Bools, measured: Measurements, copies: Sequence[int]) -> Floats:
    """Return (m, blocks) log ratios, with missing ones of attempted pairs at their worst.

    The worst is the longest trial of the run (its limit if it timed out) against the reference's in that block. The
    arm's own slowest pair is used if that is slower. Blocks without a reference remain missing.
    """
    longest = max((fact.longest_s for fact in measured.facts.values()), default=0.0)
    if longest <= 0:
        return differences
    limit = reference_logs(measured.table["trial_s"][list(copies)]) - np.log(longest)
    slowest_pair = np.where(np.isfinite(differences), differences, np.inf).min(axis=1, initial=np.inf)
    worst = np.minimum(limit[None, :], slowest_pair[:, None])
    has_reference = np.isfinite(logs_of(measured.table["trial_s"][copies[0]]))
    return np.where(attempted & has_reference & ~np.isfinite(differences), worst, differences)


def ratios_with_slowest_failed_reference(
    logs: Floats, measured: Measurements, copies: Sequence[int], arms: Sequence[int]
) -> Floats:
    """Return (arms, blocks) log ratios, with missing trials of the reference's ``copies`` at their slowest.

    ``logs`` are those of the copies, then of the arms, higher is better. The slowest is the longest trial of the run
    against the arm's own in that block, or that copy's slowest pair with the arm. Blocks without the arm remain
    missing. This mirrors ``fill_with_slowest``.
    """
    longest = max((fact.longest_s for fact in measured.facts.values()), default=0.0)
    own, total, counted = logs[len(copies) :], np.zeros(logs[len(copies) :].shape), np.zeros(logs.shape[1])
    limit = (
        np.log(longest) - logs_of(measured.table["trial_s"][list(arms)]) if longest > 0 else np.full(own.shape, np.nan)
    )
    for row, copy in zip(logs, copies, strict=False):
        over, tried = own - row, measured.attempted[copy]
        most = np.where(np.isfinite(over), over, -np.inf).max(axis=1, initial=-np.inf)[:, None]
        most = np.where(np.isfinite(most), most, np.nan)
        total += np.where(tried, np.where(np.isfinite(row), over, np.fmax(limit, most) + 0.0 * own), 0.0)
        counted += tried
    return np.where(measured.attempted[copies[0]], total / np.maximum(counted, 1), np.nan)

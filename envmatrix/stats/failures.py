"""Trials that broke: who breaks more often than its reference, and what if they had been as slow as can be.

Which numbers are missing is not left to chance where slow trials time out, so nothing is assumed of them
(docs/statistics.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.arm_facts import ArmFacts
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import logs_of, reference_logs

Floats = NDArray[np.float64]
BROKEN_OUTCOMES = ("failed", "invalid", "timed_out")


def count_broken_and_run(facts: Sequence[ArmFacts]) -> tuple[int, int]:
    """Return how many trials broke, and how many ran."""
    broken = sum(fact.outcomes[name] for fact in facts for name in BROKEN_OUTCOMES)
    return broken, broken + sum(fact.outcomes["ok"] for fact in facts)


def fails_more(measured: Measurements, arm: str, copies: Sequence[str]) -> bool:
    """Whether a larger share of an arm's trials broke than of those of all copies of its reference together.

    No test: one failure of ten against none of twenty has p = 0.33, so a test would need most trials to fail.
    """
    broken, ran = count_broken_and_run([measured.facts[arm]])
    copies_broken, copies_ran = count_broken_and_run([measured.facts[name] for name in copies])
    return broken * max(1, copies_ran) > copies_broken * ran


def reference_fails_more(measured: Measurements, arm: str, copies: Sequence[str]) -> bool:
    """Whether a larger share of the trials of its reference's copies broke than of an arm's own."""
    broken, ran = count_broken_and_run([measured.facts[arm]])
    of_copies, ran_copies = count_broken_and_run([measured.facts[name] for name in copies])
    return of_copies * max(1, ran) > broken * ran_copies


def surely_slower(at_best: float | None, reference: Sequence[ArmFacts], limit: float = 1.0) -> bool:
    """Whether an arm is slower even ``at_best``, had each trial of its reference that broke been the slowest.

    Never if one timed out: nobody knows how long it would have taken.
    """
    return at_best is not None and at_best < limit and not any(fact.outcomes["timed_out"] for fact in reference)


def fill_with_slowest(
    differences: Floats, attempted: NDArray[np.bool_], measured: Measurements, copies: Sequence[int]
) -> Floats:
    """Return (m, blocks) log ratios with the missing ones of tried pairs at their worst.

    The worst is the reference's own trial in that block against the longest trial of the whole run (its time limit
    where one timed out), or the arm's own slowest pair, whichever is slower. Blocks without a reference stay missing.
    """
    longest = max((fact.longest_s for fact in measured.facts.values()), default=0.0)
    if longest <= 0:
        return differences
    limit = reference_logs(measured.table["trial_s"][list(copies)]) - np.log(longest)
    slowest_pair = np.where(np.isfinite(differences), differences, np.inf).min(axis=1, initial=np.inf)
    worst = np.minimum(limit[None, :], slowest_pair[:, None])
    has_reference = np.isfinite(logs_of(measured.table["trial_s"][copies[0]]))
    return np.where(attempted & has_reference & ~np.isfinite(differences), worst, differences)


def fastest_filled(logs: Floats, measured: Measurements, copies: Sequence[int], arms: Sequence[int]) -> Floats:
    """Return (arms, blocks) log ratios with the missing trials of the reference's ``copies`` at their slowest.

    ``logs`` are those of the copies, then of the arms, better upwards. The slowest is a trial as long as the longest of
    the whole run against the arm's own in that block, or what is slowest of that copy against the arm. Blocks without
    the arm stay missing. The mirror image of ``slowest_filled``.
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

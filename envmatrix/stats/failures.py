"""Trials that broke: who breaks more often than its reference, and what if they had been as slow as can be.

Which numbers are missing is not left to chance where slow trials time out, so nothing is assumed of them
(docs/statistics.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.measurements import ArmFacts, Measurements
from envmatrix.stats.pairing import logs_of, reference_logs

Floats = NDArray[np.float64]
BROKEN = ("failed", "invalid", "timed_out")


def broken_of(facts: Sequence[ArmFacts]) -> tuple[int, int]:
    """Return how many trials broke, and how many ran."""
    broken = sum(fact.outcomes[name] for fact in facts for name in BROKEN)
    return broken, broken + sum(fact.outcomes["ok"] for fact in facts)


def fails_more(measured: Measurements, arm: str, copies: Sequence[str]) -> bool:
    """Whether a larger share of an arm's trials broke than of those of all copies of its reference together.

    No test: one failure of ten against none of twenty has p = 0.33, so a test would need most trials to fail.
    """
    broken, ran = broken_of([measured.facts[arm]])
    of_copies, ran_copies = broken_of([measured.facts[name] for name in copies])
    return broken * max(1, ran_copies) > of_copies * ran


def slowest_filled(
    differences: Floats, tried: NDArray[np.bool_], measured: Measurements, copies: Sequence[int]
) -> Floats:
    """Return (m, blocks) log ratios with the missing ones of tried pairs at their worst.

    The worst is the reference's own trial in that block against the longest trial of the whole run (its time limit
    where one timed out), or the arm's own slowest pair, whichever is slower. Blocks without a reference stay missing.
    """
    longest = max((fact.longest_s for fact in measured.facts.values()), default=0.0)
    if longest <= 0:
        return differences
    limit = reference_logs(measured.table["trial_s"][list(copies)]) - np.log(longest)
    own = np.where(np.isfinite(differences), differences, np.inf).min(axis=1, initial=np.inf)
    worst = np.minimum(limit[None, :], own[:, None])
    there = np.isfinite(logs_of(measured.table["trial_s"][copies[0]]))
    return np.where(tried & there & ~np.isfinite(differences), worst, differences)

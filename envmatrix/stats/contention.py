"""CPU contention: time that trials lost because other programs, or the hypervisor, had their CPUs.

A trial makes no progress at most while one of its threads waits for a CPU that others have: threads that wait for one
another at a barrier, asleep or spinning, all lose what one of them loses. So of the time that was counted it lost at
most the sum of its threads' waits, at most what other programs ran, and at most what the hypervisor took. What it
really lost lies between nothing and that bound. A conclusion is drawn only if it holds for all of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Plan
from envmatrix.results import Run
from envmatrix.stats.effects import Contended
from envmatrix.stats.measurements import COUNTED, QUOTA, Measurements
from envmatrix.units import QUIET_FIRST

Floats = NDArray[np.float64]
#: Threads wait for a CPU in more than this share of the time in which they could run: the machine is busy.
DISTURBED = 0.05
#: So is one on which others can have cost more than this share of a trial's time, such as one core of very many.
LOST = 0.20
#: More than this is never taken off: what is left of a trial that had no CPU at all is not known.
_MOST = 0.99
_TICKS_PER_S = 100.0
#: Why a verdict is withheld.
EXPLAINED = f"time without a CPU, which other programs had, can explain it: {QUIET_FIRST}"


@dataclass(frozen=True)
class Waiting:
    """How the threads of an arm waited for CPUs, medians over its trials.

    ``share``: of the time in which they could have run. ``lost``: the share of a trial's time that others can have cost
    at most. ``own``: they wait, but for one another.
    """

    share: float = 0.0
    lost: float = 0.0
    own: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether others had a good part of its CPUs."""
        return self.lost > LOST or (self.share > DISTURBED and self.lost > DISTURBED)

    @property
    def said(self) -> float:
        """The share of the time that people are told: of all threads, or, where few of them wait, of one of them."""
        return self.share if self.share > DISTURBED else self.lost


def cpu_waits(plan: Plan, measured: Measurements) -> Mapping[str, Waiting]:
    """Return how each arm waited; none where no trial counted it."""
    # While a quota holds a trial back its threads wait for no CPU that others have.
    if COUNTED not in measured.table:  # made-up trials count no waits
        return {}
    delay = np.maximum(0.0, measured.table["run_delay_s"] - np.nan_to_num(measured.table["throttled_s"]))
    stolen = np.nan_to_num(measured.table["steal_ticks"]) / _TICKS_PER_S
    others = measured.table["others_s"]
    if not any(np.nan_to_num(values).any() for values in (delay, others, stolen)):
        return {}
    counted = measured.table[COUNTED]
    with np.errstate(divide="ignore", invalid="ignore"):
        most = (np.nan_to_num(np.fmin(delay, others)) + stolen) / counted
    waited = np.nan_to_num(delay) + stolen
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = waited / (waited + measured.table["user_s"] + measured.table["system_s"])
    found = {}
    for row, arm in enumerate(measured.arms):
        share, lost = _median(shares[row]), min(_MOST, _median(most[row]))
        own = share > DISTURBED and bool(np.isfinite(others[row]).any()) and lost <= DISTURBED
        found[arm] = Waiting(share, lost, own)
    return {arm.name: _of_reference(arm.reference, arm.name, plan, measured, found) for arm in plan.arms}


def _of_reference(
    reference: str | None, name: str, plan: Plan, measured: Measurements, found: Mapping[str, Waiting]
) -> Waiting:
    """Return how an arm waited: where older trials do not say for whom, and its reference did not, for its own threads.

    Others would have had the CPUs of the reference too, whose trials ran in the same blocks.
    """
    own = found[name]
    if reference is None or reference not in found:
        return own
    among = [reference, *(arm.name for arm in plan.arms if arm.is_control and arm.reference == reference)]
    if name in among or np.isfinite(measured.of(name, "others_s")).any():
        return own
    quiet = all(not found[other].is_busy for other in among if other in found)
    return Waiting(own.share, 0.0, own=own.share > DISTURBED) if quiet else own


def quota_around(run: Run, measured: Measurements) -> tuple[float, float] | None:
    """Return the CPU quota (in CPUs) around trials whose environments set none, and in which share it was used up."""
    limited = {name for name, environment in run.environments.items() if environment.cpu_quota is not None}
    at = [row for row, arm in enumerate(run.plan.arms) if arm.runs not in limited]
    limits, used = (measured.table[name][at] for name in QUOTA)
    if not np.isfinite(limits).any():
        return None
    limit, share = float(np.nanmin(limits)), _median(used)
    return (limit, share) if share > 0 or limit < len(run.host.cpus) else None


def contended(waits: Mapping[str, Waiting], old: Sequence[str], new: str) -> Contended:
    """Return what contention can have done to a comparison of ``new`` with the mean of the copies ``old``.

    On a machine that was left alone pairs cancel what both sides lose, and only the difference counts.
    """
    sides = [[waits.get(name, Waiting()) for name in names] for names in (old, (new,))]
    before, after = (float(np.mean([-math.log1p(-one.lost) for one in side])) for side in sides)
    if not any(one.is_busy for side in sides for one in side):
        before, after = max(0.0, before - after), max(0.0, after - before)
        return Contended(math.exp(-before), math.exp(after))
    said = max(one.said for one in sides[0]), sides[1][0].said
    return Contended(math.exp(-before), math.exp(after), said)


def told_busy(found: Contended, old: str, new: str) -> str:
    """Return what is said before an answer that was measured on a busy machine, '' of one that was left alone."""
    if found.shares is None:
        return ""
    before, after = (f"{share:.0%}" for share in found.shares)
    return f"measured on a busy machine ({old} waited for a CPU {before} of the time, {new} {after}): "


def _median(values: Floats) -> float:
    there = values[np.isfinite(values)]
    return float(np.median(there)) if there.size else 0.0

"""CPU contention: time that trials lost because other programs or the hypervisor used their CPUs.

At worst, a trial stops whenever one of its threads waits for a CPU that others use. Threads that wait for each other at
a barrier, asleep or spinning, all lose what one of them loses. So the trial lost at most the sum of its threads' waits
or the CPU time of other programs, whichever is less, plus stolen time. The real loss is between zero and that bound; a
conclusion must be true for that whole range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envmatrix.durations_and_sizes import QUIET_FIRST
from envmatrix.plan import Plan
from envmatrix.results import Run
from envmatrix.stats.array_types import Floats
from envmatrix.stats.effects import Contended
from envmatrix.stats.measurements import COUNTED, QUOTA, Measurements

#: The machine is busy if threads wait for a CPU in more than this share of the time in which they could run.
DISTURBED = 0.05
#: It is also busy if others can have cost more than this share of a trial's time, such as one core of many.
LOST = 0.20
#: The largest share that is subtracted: the rest of a trial without any CPU time is unknown.
_MOST = 0.99
_TICKS_PER_S = 100.0
#: Reason for withholding a verdict.
EXPLAINED = f"time without a CPU, which other programs had, can explain it: {QUIET_FIRST}"


@dataclass(frozen=True)
class Waiting:
    """How an arm's threads waited for CPUs, as medians over its trials.

    ``share`` is the waiting part of the time in which threads could run. ``lost`` is the largest share of a trial's
    time that others can have cost. ``own``: its threads waited for each other.
    """

    share: float = 0.0
    lost: float = 0.0
    own: bool = False

    @property
    def is_busy(self) -> bool:
        """Return whether others used a considerable part of its CPUs."""
        return self.lost > LOST or (self.share > DISTURBED and self.lost > DISTURBED)

    @property
    def said(self) -> float:
        """The share of time to report: that of all threads, or of one thread if few of them wait."""
        return self.share if self.share > DISTURBED else self.lost


def cpu_waits(plan: Plan, measured: Measurements) -> Mapping[str, Waiting]:
    """Return how each arm waited; empty if no trial counted waits."""
    # Time under a quota is not contention: no other program uses those CPUs.
    if COUNTED not in measured.table:  # simulated trials count no waits
        return {}
    delay = np.maximum(0.0, measured.table["run_delay_s"] - np.nan_to_num(measured.table["throttled_s"]))
    stolen = np.nan_to_num(measured.table["steal_ticks"]) / _TICKS_PER_S
    others = measured.table["others_s"]
    if not any(np.nan_to_num(values).any() for values in (delay, others, stolen)):
        return {}
    counted = measured.table[COUNTED]
    waited = np.nan_to_num(delay) + stolen
    with np.errstate(divide="ignore", invalid="ignore"):
        most = (np.nan_to_num(np.fmin(delay, others)) + stolen) / counted
        shares = waited / (waited + measured.table["user_s"] + measured.table["system_s"])
    waits = {}
    for row, arm in enumerate(measured.arms):
        share, lost = _median(shares[row]), min(_MOST, _median(most[row]))
        own = share > DISTURBED and bool(np.isfinite(others[row]).any()) and lost <= DISTURBED
        waits[arm] = Waiting(share, lost, own)
    return {arm.name: _of_reference(arm.reference, arm.name, plan, measured, waits) for arm in plan.arms}


def _of_reference(
    reference: str | None, name: str, plan: Plan, measured: Measurements, waits: Mapping[str, Waiting]
) -> Waiting:
    """Return an arm's waits; for older trials, decide by the reference whether other programs caused them.

    The reference ran in the same blocks. If it was not busy, the arm's threads waited for each other.
    """
    own = waits[name]
    if reference is None or reference not in waits:
        return own
    copies = [reference, *(arm.name for arm in plan.arms if arm.is_control and arm.reference == reference)]
    if name in copies or np.isfinite(measured.of(name, "others_s")).any():
        return own
    quiet = all(not waits[other].is_busy for other in copies if other in waits)
    return Waiting(own.share, 0.0, own=own.share > DISTURBED) if quiet else own


def outer_quota(run: Run, measured: Measurements) -> tuple[float, float] | None:
    """Return the CPU quota (in CPUs) around trials whose environments set none, and the share of used-up periods."""
    limited = {name for name, environment in run.environments.items() if environment.cpu_quota is not None}
    at = [row for row, arm in enumerate(run.plan.arms) if arm.runs not in limited]
    limits, used = (measured.table[name][at] for name in QUOTA)
    if not np.isfinite(limits).any():
        return None
    limit, share = float(np.nanmin(limits)), _median(used)
    return (limit, share) if share > 0 or limit < len(run.host.cpus) else None


def contention_bounds(waits: Mapping[str, Waiting], old: Sequence[str], new: str) -> Contended:
    """Return the possible influence of contention on a comparison of ``new`` with the mean of the copies ``old``.

    On a quiet machine, pairs cancel the loss that both sides share, and only the difference counts.
    """
    sides = [[waits.get(name, Waiting()) for name in names] for names in (old, (new,))]
    before, after = (float(np.mean([-math.log1p(-waiting.lost) for waiting in side])) for side in sides)
    if not any(waiting.is_busy for side in sides for waiting in side):
        before, after = max(0.0, before - after), max(0.0, after - before)
        return Contended(math.exp(-before), math.exp(after))
    shares = max(waiting.said for waiting in sides[0]), sides[1][0].said
    return Contended(math.exp(-before), math.exp(after), shares)


def told_busy(contention: Contended, old: str, new: str) -> str:
    """Return the remark about a busy machine that precedes an answer, or '' for a quiet machine."""
    if contention.shares is None:
        return ""
    before, after = (f"{share:.0%}" for share in contention.shares)
    return f"measured on a busy machine ({old} waited for a CPU {before} of the time, {new} {after}): "


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else 0.0

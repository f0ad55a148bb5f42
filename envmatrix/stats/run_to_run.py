"""Is a run slower than others of one thing, made on other days? What days do is learnt from those others.

Runs of one thing differ by more than their trials do: another boot, another placement, another hour. How much more is
only seen in several of them, and more blocks in one run do not show it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtr, stdtrit

from envmatrix.errors import StoreError
from envmatrix.plan import Arm
from envmatrix.plan.interleaving import turn_length
from envmatrix.results import Run, RunFolder
from envmatrix.stats.effects import LEVEL, promised_p
from envmatrix.stats.pairing import ratio_of
from envmatrix.stats.welch import Mean, Quotient

#: Fewer runs of one thing do not say how much runs differ.
FEWEST_RUNS = 3
_BITS = ("package ", "system ", "base_digest")


def against(olds: Sequence[Mean], new: Mean, comparisons: int = 1, level: float = LEVEL) -> Quotient:
    """Return ``new`` over the mean of ``olds``, at least ``FEWEST_RUNS`` runs of one thing.

    The interval in which the next run of the same thing lies (Hahn & Meeker 1991): Student's t with one degree of
    freedom less than there are old runs, on the variance of their means, in which a run's own noise is contained. Where
    the new one is noisier than they are, what it has more is added. ``comparisons`` hold together (Bonferroni).
    """
    means = np.array([old.mean for old in olds])
    count, mean = len(olds), new.mean - float(means.mean())
    noisier = max(0.0, new.error**2 - float(np.mean([old.error**2 for old in olds])))
    error = math.sqrt(float(means.var(ddof=1)) * (1.0 + 1.0 / count) + noisier)
    if error == 0:
        return Quotient(ratio_of(mean), ratio_of(mean), ratio_of(mean), 0.0 if mean else 1.0)
    reach = float(stdtrit(count - 1, 1.0 - (1.0 - level) / (2 * comparisons))) * error
    p = promised_p(2.0 * comparisons * float(stdtr(count - 1, -abs(mean) / error)), level)
    return Quotient(ratio_of(mean), ratio_of(mean - reach), ratio_of(mean + reach), p)


def identity(run: Run) -> tuple[str, str]:
    """Return what a run and a copy of its folder have in common: the copy's trials are no further measurement."""
    return run.name, run.created


def runs_beside(old: RunFolder, known: Iterable[Run]) -> list[tuple[RunFolder, Run]]:
    """Return the runs in the folder that ``old`` lies in, each once, without those that are known.

    One that cannot be read is passed over.
    """
    met, found = {identity(run) for run in known}, []
    for path in sorted(old.path.resolve().parent.iterdir()):
        with contextlib.suppress(StoreError, OSError):
            if (path / "run.json").is_file() and identity(run := RunFolder(path).load_here()) not in met:
                met.add(identity(run))
                found.append((RunFolder(path), run))
    return found


def same_thing(one: Run, other: Run, arm: Arm) -> bool:
    """Whether two runs measured one thing in ``arm`` alike: environment, bits, workload, program, benchmark."""
    alike = one.bench_digest == other.bench_digest and same_schedule(one, other)
    return alike and _thing(one, arm) == _thing(other, arm)


def same_schedule(one: Run, other: Run) -> bool:
    """Whether trials of two runs were measured in one way: a turn sees other seconds than a short trial does."""
    designs = one.design, other.design
    ways = [(own.schedule, own.schedule == "turns" and (own.turn, own.turn_apart)) for own in designs]
    return ways[0] == ways[1]


def schedule_of(run: Run) -> str:
    """Say how trials of a run were measured: turns of steps, or of a part of a second where those are not known."""
    if run.design.schedule != "turns":
        return "one trial after the other"
    kinds = sorted({workload.tells_steps for workload in run.workloads.values()}, reverse=True) or [True]
    apart = f", {run.design.turn_apart} before them set apart" if kinds[0] else ""
    return f"turns of {' or '.join(turn_length(run.design.turn, steps=kind) for kind in kinds)}{apart}"


def _thing(run: Run, arm: Arm) -> tuple[object, ...]:
    environment = run.environments.get(arm.runs)
    there = any(own.name == arm.name and own.runs == arm.runs for own in run.arms)
    if environment is None or not there:
        return ()
    facts = run.images.get(f"{environment.image_key}@{arm.engine}", {})
    bits = {name: value for name, value in facts.items() if name.startswith(_BITS)}
    work = run.workloads.get(arm.workload), run.programs.get(arm.workload)
    return replace(environment, description="", own_levels=None), bits, work

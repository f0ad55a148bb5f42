"""Variation between runs: comparison of one run with several older runs of the same setup.

Runs differ by more than their trials do: another boot, another placement, another hour. Only several runs show by how
much; more blocks in one run do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from envmatrix.errors import StoreError
from envmatrix.plan import Arm
from envmatrix.plan.interleaving import turn_length_text
from envmatrix.results import Run, RunFolder
from envmatrix.stats.effects import LEVEL, rescale_p_value
from envmatrix.stats.inference.welch import Mean, Quotient
from envmatrix.stats.pairing import ratio_from_log

Floats = NDArray[np.float64]
#: With fewer runs of the same setup, the variation between runs is unknown.
FEWEST_RUNS = 3
_BUILD_FACT_PREFIXES = ("package ", "system ", "base_digest")


def compare_with_runs(olds: Sequence[Mean], new: Mean, comparisons: int = 1, level: float = LEVEL) -> Quotient:
    """Return ``new`` over the mean of ``olds``, at least ``FEWEST_RUNS`` runs of the same setup.

    This is the prediction interval for the next run (Hahn & Meeker 1991). It uses Student's t with one degree of
    freedom less than old runs, and the variance of their means, which includes noise within a run. If the new run is
    noisier, its excess is added. Intervals of ``comparisons`` are simultaneous (Bonferroni).
    """
    count, sides = len(olds), [(one.mean, one.error) for one in (*olds, new)]
    mean, error = map(float, prediction(*np.array(sides).T))
    if error == 0:
        return Quotient(ratio_from_log(mean), ratio_from_log(mean), ratio_from_log(mean), 0.0 if mean else 1.0)
    reach = float(stdtrit(count - 1, 1.0 - (1.0 - level) / (2 * comparisons))) * error
    p = rescale_p_value(2.0 * comparisons * float(stdtr(count - 1, -abs(mean) / error)), level)
    return Quotient(ratio_from_log(mean), ratio_from_log(mean - reach), ratio_from_log(mean + reach), p)


def prediction(means: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Return the difference of the last run from the mean of the others, and its standard error.

    Both arguments have one number per run on their last axis.
    """
    olds, noise = means[..., :-1], errors**2
    noisier = np.maximum(0.0, noise[..., -1] - noise[..., :-1].mean(axis=-1))
    variance = olds.var(axis=-1, ddof=1) * (1.0 + 1.0 / olds.shape[-1]) + noisier
    return means[..., -1] - olds.mean(axis=-1), np.sqrt(variance)


def run_identity(run: Run) -> tuple[str, str]:
    """Return a key that a run shares with copies of its folder, whose trials are no further measurements."""
    return run.name, run.created


def sibling_runs(old: RunFolder, known_runs: Iterable[Run]) -> list[tuple[RunFolder, Run]]:
    """Return the runs in the same folder as ``old``, each once, without those in ``known_runs``.

    Unreadable runs are skipped.
    """
    seen_identities, siblings = {run_identity(run) for run in known_runs}, []
    for path in sorted(old.path.resolve().parent.iterdir()):
        with contextlib.suppress(StoreError, OSError):
            if (path / "run.json").is_file() and run_identity(
                run := RunFolder(path).load_for_resume()
            ) not in seen_identities:
                seen_identities.add(run_identity(run))
                siblings.append((RunFolder(path), run))
    return siblings


def is_same_setup(one: Run, other: Run, arm: Arm) -> bool:
    """Return whether two runs have the same setup for ``arm``: environment, image, workload, program and benchmark."""
    same_conditions = one.bench_digest == other.bench_digest and is_same_schedule(one, other)
    return same_conditions and _measured_setup(one, arm) == _measured_setup(other, arm)


def is_same_schedule(one: Run, other: Run) -> bool:
    """Return whether two runs measured trials in the same way; interleaved and separate trials are not comparable."""
    designs = one.design, other.design
    schedules = [
        (design.schedule, design.schedule == "turns" and (design.turn, design.turn_apart)) for design in designs
    ]
    return schedules[0] == schedules[1]


def describe_schedule(run: Run) -> str:
    """Return how a run measured its trials: one after the other, or turns of steps or of a fraction of a second."""
    if run.design.schedule != "turns":
        return "one trial after the other"
    kinds = sorted({workload.tells_steps for workload in run.workloads.values()}, reverse=True) or [True]
    apart_text = f", {run.design.turn_apart} before them set apart" if kinds[0] else ""
    return f"turns of {' or '.join(turn_length_text(run.design.turn, steps=kind) for kind in kinds)}{apart_text}"


def _measured_setup(run: Run, arm: Arm) -> tuple[object, ...]:
    environment = run.environments.get(arm.runs)
    has_arm = any(run_arm.name == arm.name and run_arm.runs == arm.runs for run_arm in run.arms)
    if environment is None or not has_arm:
        return ()
    facts = run.images.get(f"{environment.image_key}@{arm.engine}", {})
    build_facts = {name: value for name, value in facts.items() if name.startswith(_BUILD_FACT_PREFIXES)}
    workload_and_program = run.workloads.get(arm.workload), run.programs.get(arm.workload)
    return replace(environment, description="", own_levels=None), build_facts, workload_and_program

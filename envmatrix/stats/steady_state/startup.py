"""Start of each environment: the time to its first steps, and whether it reaches a steady state.

Start times come from trials that ran separately or from a steady-state run; all other values need the latter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from envmatrix.evidence.trial_record import Timing
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.results import Trial
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import show_seconds
from envmatrix.stats.steady_state.detection import Steadiness, classify
from envmatrix.stats.steady_state.later_speed import WATCHED
from envmatrix.system.bench_options import options

#: Sets the number of points of a curve.
_POINTS = 48
_STARTUP_PHASES = ("startup_ns", "preparation_ns", "compile_ns")
#: If the steps of trials end sooner than this, a note warns about longer runs: gains from allocators grow for some
#: seconds (docs/how-to/short-and-long-jobs.md).
_FIRST_S = 10.0


@dataclass(frozen=True)
class Start:
    """The start of an arm. Times are in seconds; unknown values are None.

    ``ready_s`` is the time until its first step (start-up, import, preparation, compilation); ``first_s`` is the time
    until ``steps`` steps are done. The rest is from a steady-state run: ``steady``; ``failed``, why there is none; and
    the ``curve`` of (seconds since the first step, seconds per step). ``change`` is the fraction by which speed changes
    from the timed steps of trials to the steady state, within that run.
    """

    arm: Arm
    steps: int
    ready_s: float | None
    first_s: float | None
    warm_up: int
    steady: Steadiness | None = None
    change: float | None = None
    failed: str = ""
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def timing_includes_warm_up(self) -> bool:
        """Return whether the timed steps of a trial begin before the steady state."""
        return self.steady is not None and (self.steady.steps is None or self.steady.steps > self.warm_up)


def starts(
    arms: Iterable[Arm], measured: Measurements, workloads: Mapping[str, Workload], looks: Iterable[Trial]
) -> tuple[Start, ...]:
    """Return the start of each arm, without second copies and arms about which nothing is known."""
    run_of_arm = {look.arm: look for look in looks}
    compared_arms = [arm for arm in arms if not (arm.is_control or arm.is_uninterrupted_copy)]
    arm_starts = [_start(arm, measured, workloads[arm.workload], run_of_arm.get(arm.name)) for arm in compared_arms]
    return tuple(start for start in arm_starts if start.first_s is not None or start.steady or start.failed)


def only_first_seconds_note(arm: Arm, measured: Measurements, workload: Workload) -> str:
    """Return a note if an answer is only about the first seconds of a program, otherwise ''."""
    steps, step_s, watched_s = (measured.median(arm.name, name) for name in ("steps", "step_median_s", WATCHED))
    if workload.command and watched_s and watched_s < _FIRST_S:
        return f"First seconds: each trial has {show_seconds(watched_s)} of steps. In a longer run the gain may differ."
    if workload.command or not steps or not step_s:
        return ""
    before = _option(workload, "warmup_steps")
    if (before + steps) * step_s >= _FIRST_S:
        return ""
    return (
        f"Only the first seconds are measured: each trial times its steps {before + 1} to {before + round(steps)} "
        f"({show_seconds(steps * step_s)}). Longer training may gain more or less: to measure later steps, raise "
        "`warmup_steps`."
    )


def _start(arm: Arm, measured: Measurements, workload: Workload, look: Trial | None) -> Start:
    steps, warm_up = measured.median(arm.name, "steps"), _option(workload, "warmup_steps")
    ready_s, first_s = _median_start_times(measured, arm)
    first_s = None if _option(workload, "verify_steps") else first_s  # their duration is not recorded
    trial_start = Start(arm, warm_up + round(steps or 0), ready_s, first_s, warm_up)
    timing = look.record.timing if look and look.outcome == "ok" and look.record else None
    if look is None:
        return trial_start
    if timing is None or not timing.steps_ns:
        return replace(trial_start, failed=look.reason or look.outcome)
    return _with_steady_state(trial_start, timing)


def _with_steady_state(trial_start: Start, timing: Timing) -> Start:
    times = [step / 1e9 for step in timing.steps_ns or ()]
    ready_s, first_s = trial_start.ready_s, trial_start.first_s
    if first_s is None and timing.startup_ns and len(times) >= trial_start.steps:  # unknown for interleaved trials
        ready_s = sum(getattr(timing, name) or 0 for name in _STARTUP_PHASES) / 1e9
        first_s = ready_s + sum(times[: trial_start.steps])
    steady = classify(times)
    timed = times[trial_start.warm_up : trial_start.steps]
    change = fmean(timed) / steady.step_s - 1.0 if steady and steady.step_s and timed else None
    return replace(trial_start, ready_s=ready_s, first_s=first_s, steady=steady, change=change, curve=_curve(times))


def _median_start_times(measured: Measurements, arm: Arm) -> tuple[float | None, float | None]:
    """Return the medians over trials of the time to the first step and to the last timed one."""
    names = ("startup_s", "preparation_s", "compile_s", "warmup_s", "training_s")
    startup, preparation, compiling, warmup, training = (measured.median(arm.name, name) for name in names)
    if startup is None:
        return None, None
    ready = startup + ((preparation or 0.0) + (compiling or 0.0))
    return ready, None if warmup is None or training is None else ready + warmup + training


def _option(workload: Workload, name: str) -> int:
    value = workload.options.get(name, options()[name].default)
    return value if isinstance(value, int) else 0


def _curve(times: list[float]) -> tuple[tuple[float, float], ...]:
    """Return (time, median step time) of consecutive groups of steps; groups are small at the beginning."""
    points, start, elapsed_s = [], 0, 0.0
    while start < len(times):
        end = min(len(times), max(start + 1, math.ceil(start * (1 + 4 / _POINTS))))
        step_times = sorted(times[start:end])
        duration_s = sum(step_times)
        points.append((elapsed_s + duration_s / 2, step_times[len(step_times) // 2]))
        start, elapsed_s = end, elapsed_s + duration_s
    return tuple(points)

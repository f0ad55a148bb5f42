"""How each environment starts: the time to its first steps, and whether they come to a steady state.

The first is of the trials where each ran alone, which all runs have; what only a long look tells is None without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from envmatrix.evidence.record import Timing
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.results import Trial
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import show_seconds
from envmatrix.stats.steady import Steadiness, classify
from envmatrix.system.bench_options import options

#: Points of a curve.
_POINTS = 48
_STARTUP_PHASES = ("startup_ns", "preparation_ns", "compile_ns")
#: Of trials whose steps are over sooner it is said that minutes can be otherwise: what allocators gain grows for some
#: seconds (docs/statistics.md).
_FIRST_S = 10.0


@dataclass(frozen=True)
class Start:
    """How an arm starts. Times in seconds; what is not known is None.

    ``ready_s`` is the time until its first step can begin (start-up, import, preparing, compiling), ``first_s`` until
    ``steps`` of them are done. Of a long look: ``steady``, ``change`` (of its speed, a fraction, from the steps that
    trials time to the steady state: the speeds of two looks are minutes apart), ``failed`` (why it has none), and the
    ``curve`` of (seconds since the first step began, seconds of a step there).
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
    def times_warm_up(self) -> bool:
        """Whether the timed steps of a trial begin before the steady state does."""
        return self.steady is not None and (self.steady.steps is None or self.steady.steps > self.warm_up)


def starts(
    arms: Iterable[Arm], measured: Measurements, workloads: Mapping[str, Workload], looks: Iterable[Trial]
) -> tuple[Start, ...]:
    """Return how each arm starts, but for second copies, and those of which nothing is known."""
    run_of_arm = {look.arm: look for look in looks}
    compared_arms = [arm for arm in arms if not (arm.is_control or arm.is_alone)]
    arm_starts = [_start(arm, measured, workloads[arm.workload], run_of_arm.get(arm.name)) for arm in compared_arms]
    return tuple(start for start in arm_starts if start.first_s is not None or start.steady or start.failed)


def first_seconds_note(arm: Arm, measured: Measurements, workload: Workload) -> str:
    """Return what is said beside an answer that is of the first seconds of a program alone, '' of others."""
    steps, step_s = (_median(measured, arm, name) for name in ("steps", "step_median_s"))
    if workload.command or not steps or not step_s:
        return ""
    before = _option(workload, "warmup_steps")
    if (before + steps) * step_s >= _FIRST_S:
        return ""
    return (
        f"First seconds: trials time steps {before + 1} to {before + round(steps)}, {show_seconds(steps * step_s)} in "
        "all. Over minutes an environment can gain more or less: raise `warmup_steps` to know."
    )


def _start(arm: Arm, measured: Measurements, workload: Workload, look: Trial | None) -> Start:
    steps, warm_up = _median(measured, arm, "steps"), _option(workload, "warmup_steps")
    ready_s, first_s = _median_start_times(measured, arm)
    first_s = None if _option(workload, "verify_steps") else first_s  # how long those took is not recorded
    trial_start = Start(arm, warm_up + round(steps or 0), ready_s, first_s, warm_up)
    timing = look.record.timing if look and look.outcome == "ok" and look.record else None
    if look is None:
        return trial_start
    if timing is None or not timing.steps_ns:
        return Start(arm, trial_start.steps, ready_s, first_s, warm_up, failed=look.reason or look.outcome)
    return _with_steady_state(trial_start, timing)


def _with_steady_state(trial_start: Start, timing: Timing) -> Start:
    times = [step / 1e9 for step in timing.steps_ns or ()]
    ready_s, first_s = trial_start.ready_s, trial_start.first_s
    if first_s is None and timing.startup_ns and len(times) >= trial_start.steps:  # trials in turns start beside others
        ready_s = sum(getattr(timing, name) or 0 for name in _STARTUP_PHASES) / 1e9
        first_s = ready_s + sum(times[: trial_start.steps])
    steady = classify(times)
    timed = times[trial_start.warm_up : trial_start.steps]
    change = fmean(timed) / steady.step_s - 1.0 if steady and steady.step_s and timed else None
    return Start(
        trial_start.arm, trial_start.steps, ready_s, first_s, trial_start.warm_up, steady, change, curve=_curve(times)
    )


def _median_start_times(measured: Measurements, arm: Arm) -> tuple[float | None, float | None]:
    """Return the medians over trials of the time to the first step and to the last timed one."""
    startup, warmup, training = (_median(measured, arm, name) for name in ("startup_s", "warmup_s", "training_s"))
    if startup is None:
        return None, None
    ready = startup + sum(_median(measured, arm, name) or 0.0 for name in ("preparation_s", "compile_s"))
    return ready, None if warmup is None or training is None else ready + warmup + training


def _median(measured: Measurements, arm: Arm, name: str) -> float | None:
    return measured.median(arm.name, name)


def _option(workload: Workload, name: str) -> int:
    value = workload.options.get(name, options()[name].default)
    return value if isinstance(value, int) else 0


def _curve(times: list[float]) -> tuple[tuple[float, float], ...]:
    """Return medians of steps that are taken together, each where its middle lies; few at the beginning."""
    points, start, elapsed_s = [], 0, 0.0
    while start < len(times):
        end = min(len(times), max(start + 1, math.ceil(start * (1 + 4 / _POINTS))))
        step_times = sorted(times[start:end])
        duration_s = sum(step_times)
        points.append((elapsed_s + duration_s / 2, step_times[len(step_times) // 2]))
        start, elapsed_s = end, elapsed_s + duration_s
    return tuple(points)

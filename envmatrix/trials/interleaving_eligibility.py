"""Eligibility for interleaving: which trials can run interleaved, and why others run one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from envmatrix.engines.base import Engine, TakesTurns
from envmatrix.matrix import Design
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.plan.environment import Environment
from envmatrix.plan.turn_order import comparison_roots, with_separate_references
from envmatrix.results import Run

#: Memory assumed for a process of an unmeasured workload. Torch with its libraries takes a third of it.
DEFAULT_PROCESS_BYTES = 2**30
#: An unmeasured arm may need this many times the peak of its workload's other arms.
PEAK_MARGIN = 1.25
#: Options of a workload -> values that ``schedule: auto`` requires for interleaving.
_INTERLEAVABLE_OPTIONS: Mapping[str, object] = {"task": "training", "compile": "none", "workers": 0}


def is_single_process_benchmark(workload: Workload) -> bool:
    """Return whether a workload is the built-in benchmark in one process, whose steps are known."""
    options = workload.options
    return not workload.command and {options.get(name, "none") for name in ("parallel", "collective")} == {"none"}


@dataclass(frozen=True)
class _PlannedArm:
    """An arm with its environment, workload and engine (None: not usable here)."""

    arm: Arm
    environment: Environment
    workload: Workload
    engine: Engine | None

    @property
    def device(self) -> object:
        """The device of the built-in benchmark; a user's program counts as the CPU."""
        device = self.workload.options.get("device", "cpu")
        return self.environment.variables.get("BENCH_DEVICE") or "cpu" if device == "environment" else device

    def cannot_pause_reason(self) -> str:
        """Return why its processes cannot pause at their gates, '' if they can."""
        workload = self.workload
        if self.environment.srun:
            return "a level sets `srun:`, and Slurm does not pause what it starts"
        if workload.command and (why := _program_reason(workload)):
            return f"workload {workload.name} is your own program {why}"
        if not workload.command and not is_single_process_benchmark(workload):
            return f"workload {workload.name} uses several processes or devices"
        if self.device not in ("cpu", "cuda"):
            return f"workload {workload.name} runs on a device that one process at a time can use"
        if not isinstance(self.engine, TakesTurns):
            return f"engine {self.arm.engine} cannot pause a process"
        # A program's own wrapper pauses it, inside.
        return "" if workload.command else self.engine.why_no_pauses()

    def not_interleaved_reason(self) -> str:
        """Return why it is not interleaved, '' if it can be."""
        turns_reason = "a level sets `turns: false`, because a pause would change how it behaves"
        return self.cannot_pause_reason() or ("" if self.environment.turns else turns_reason)

    def is_unaffected_by_pauses(self) -> bool:
        """Return whether its process can pause between steps without affecting the measurement.

        Start-up is measured too if a model is compiled. If only a program's wall time is known, work such as loading
        data may continue during a pause. A pause also leaves the caches to others, which lengthens the latency tail of
        predictions.
        """
        options = self.workload.options
        return (
            self.workload.tells_steps
            and all(options.get(name, required) == required for name, required in _INTERLEAVABLE_OPTIONS.items())
            and self.device == "cpu"
            and not self.cannot_pause_reason()
        )


def _planned_arms(
    arms: Iterable[Arm],
    environments: Mapping[str, Environment],
    workloads: Mapping[str, Workload],
    engines: Mapping[str, Engine | None],
) -> list[_PlannedArm]:
    return [_PlannedArm(arm, environments[arm.runs], workloads[arm.workload], engines.get(arm.engine)) for arm in arms]


def non_interleaved_arms(
    arms: Iterable[Arm],
    environments: Mapping[str, Environment],
    workloads: Mapping[str, Workload],
    engines: Mapping[str, Engine | None],
) -> dict[str, str]:
    """Return arm -> reason, for the arms that are not interleaved."""
    planned_arms = _planned_arms(arms, environments, workloads, engines)
    return {planned.arm.name: reason for planned in planned_arms if (reason := planned.not_interleaved_reason())}


def decide_schedule(
    design: Design,
    arms: tuple[Arm, ...],
    environments: Mapping[str, Environment],
    workloads: Mapping[str, Workload],
    engines: Mapping[str, Engine | None],
    skipped: Collection[str] = (),
) -> tuple[Design, tuple[Arm, ...]]:
    """Return a design with ``schedule: auto`` decided, and its arms.

    If interleaved, the uninterrupted arms get copies of references. ``skipped`` arms do not run and need none. ``auto``
    interleaves neither several engines, whose start-up is measured too, nor programs on a GPU: all processes would use
    its memory at once, and it continues to work for a stopped program. The built-in benchmark waits for the GPU at the
    end of each turn.
    """
    running_arms = [arm for arm in arms if arm.name not in skipped]
    planned_arms = _planned_arms(running_arms, environments, workloads, engines)
    if design.schedule == "auto":
        can_interleave = (
            not (design.gpus and any(planned.workload.command for planned in planned_arms))
            and len({arm.engine for arm in running_arms}) == 1
            and all(planned.is_unaffected_by_pauses() for planned in planned_arms)
        )
        design = design.model_copy(update={"schedule": "turns" if can_interleave else "sequential"})
    if design.schedule != "turns":
        return design, arms
    lone = [planned.arm.name for planned in planned_arms if planned.not_interleaved_reason()]
    return design, with_separate_references(arms, lone)


def non_interleaved_reasons(run: Run, engines: Mapping[str, Engine]) -> tuple[dict[str, str], set[str]]:
    """Return root -> why it and all arms compared with it are not interleaved, and which of the roots have one turn.

    Compared arms must be measured in the same way: interleaved and non-interleaved arms are never compared
    (``comparison_roots``). A root has one turn if only because a pause would change how its arms run: their processes
    can still start together and wait before their warm-up; each then takes all steps in one turn. A user's program has
    no such waiting point.
    """
    roots = comparison_roots(run.arms)
    running_arms = [arm for arm in run.arms if arm.name not in run.skipped]
    reasons: dict[str, str] = {}
    unable: set[str] = set()
    for planned in _planned_arms(running_arms, run.environments, run.workloads, engines):
        root = roots[planned.arm.name]
        if reason := planned.not_interleaved_reason():
            reasons.setdefault(root, reason)
        if planned.workload.command or planned.cannot_pause_reason():
            unable.add(root)
    return reasons, set(reasons) - unable


def _program_reason(workload: Workload) -> str:
    """Return why a program is not interleaved, '' if it can be: its own clock would run during a pause."""
    main_metric, *further_metrics = workload.sources.values()
    if not (main_metric.wall or main_metric.steps) or further_metrics:
        return "and reports its own times (only its wall time or its `steps` can be interleaved)"
    return "with a `prepare` line that runs just before it" if workload.prepare else ""


def memory_needs(
    arms: Iterable[Arm], peaks: Mapping[str, int], limit: int | None, usual: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return arm -> the most bytes that its process may need.

    ``peaks`` are peak bytes per arm, ``usual`` peak bytes per workload in any arm, ``limit`` the most bytes for each
    process.
    """
    workload_estimates = {workload: int(PEAK_MARGIN * peak) for workload, peak in (usual or {}).items()}
    estimates = {
        arm.name: peaks.get(arm.name, workload_estimates.get(arm.workload, DEFAULT_PROCESS_BYTES)) for arm in arms
    }
    return {name: min(need, limit) if limit else need for name, need in estimates.items()}

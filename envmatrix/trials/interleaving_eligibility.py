"""Which trials may live together and take turns, and why others run one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from envmatrix.engines.base import Engine, TakesTurns
from envmatrix.matrix import Design
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.plan.environment import Environment
from envmatrix.plan.interleaving import comparison_roots, with_separate_references
from envmatrix.results import Run

#: What a process is taken to need before one of its workload was measured: torch with its libraries takes a third.
DEFAULT_PROCESS_BYTES = 2**30
#: An arm of which none was measured may need so many times the most that others of its workload had.
PEAK_MARGIN = 1.25
#: Options of a workload, with the values that ``schedule: auto`` wants for turns.
_INTERLEAVABLE_OPTIONS: Mapping[str, object] = {"task": "training", "compile": "none", "workers": 0}
#: The share of the memory that is there which a group may take.
_MEMORY_SHARE = 0.8
_CGROUP_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def has_one_process(workload: Workload) -> bool:
    """Whether a workload is the built-in benchmark in one process, whose steps are known."""
    options = workload.options
    return not workload.command and {options.get(name, "none") for name in ("parallel", "collective")} == {"none"}


def not_interleaved_reason(arm: Arm, environment: Environment, workload: Workload, engine: Engine | None) -> str:
    """Say why an arm takes no turns, '' when it can."""
    if why := _cannot_pause_reason(arm, environment, workload, engine):
        return why
    if not environment.turns:
        return "a level sets `turns: false`, because a pause would change how it behaves"
    return ""


def _cannot_pause_reason(arm: Arm, environment: Environment, workload: Workload, engine: Engine | None) -> str:
    """Say why no process of an arm can stand still at its gate, '' when they can."""
    options = workload.options
    if workload.command and (why := _program_reason(workload)):
        return f"workload {arm.workload} is your own program {why}"
    if not workload.command and not has_one_process(workload):
        return f"workload {arm.workload} uses several processes or devices"
    if options.get("device", "cpu") == "environment" and (environment.variables.get("BENCH_DEVICE") or "cpu") == "cpu":
        options = {**options, "device": "cpu"}
    if options.get("device", "cpu") != "cpu":
        return f"workload {arm.workload} runs on a device whose memory all processes would share"
    if not isinstance(engine, TakesTurns):
        return f"engine {arm.engine} cannot pause a process"
    return ""


def non_interleaved_arms(
    arms: Iterable[Arm], environments: Mapping[str, Environment], workloads: Mapping[str, Workload],
    engines: Mapping[str, Engine | None],
) -> dict[str, str]:  # fmt: skip
    """Return arm -> why it takes no turns, for those that take none."""
    reasons = {
        arm: not_interleaved_reason(arm, environments[arm.runs], workloads[arm.workload], engines.get(arm.engine))
        for arm in arms
    }
    return {arm.name: reason for arm, reason in reasons.items() if reason}


def decide_schedule(
    design: Design, arms: tuple[Arm, ...], environments: Mapping[str, Environment], workloads: Mapping[str, Workload],
    engines: Mapping[str, Engine | None], skipped: Collection[str] = (),
) -> tuple[Design, tuple[Arm, ...]]:  # fmt: skip
    """Return a design of which ``schedule: auto`` is decided, and its arms.

    In turns there are copies of references for those that take none; what is ``skipped`` runs in no way, so that it
    needs none. Programs of one's own on a GPU would hold its memory all at once, and it works on for one that is
    stopped.
    """
    running_arms = [arm for arm in arms if arm.name not in skipped]
    if design.schedule == "auto":
        own_on_gpu = design.gpus and any(workloads[arm.workload].command for arm in running_arms)
        can_interleave = not own_on_gpu and _can_interleave(running_arms, environments, workloads, engines)
        design = design.model_copy(update={"schedule": "turns" if can_interleave else "sequential"})
    copied_arms = (
        non_interleaved_arms(running_arms, environments, workloads, engines) if design.schedule == "turns" else ()
    )
    return design, with_separate_references(arms, copied_arms)


def _can_interleave(
    arms: Sequence[Arm], environments: Mapping[str, Environment], workloads: Mapping[str, Workload],
    engines: Mapping[str, Engine | None],
) -> bool:  # fmt: skip
    """Whether each process has steps that it can be stopped between, and no start is a part of the question.

    A start is where engines are compared, and where a model is compiled. Of a program of which only the wall time is
    known its user alone knows whether anything goes on while it stands still, as loaders' workers may; and the tail of
    latencies is what a pause, which leaves the caches to others, makes longer.
    """
    return len({arm.engine for arm in arms}) == 1 and all(
        (workload := workloads[arm.workload]).tells_steps
        and all(workload.options.get(name, required) == required for name, required in _INTERLEAVABLE_OPTIONS.items())
        and not _cannot_pause_reason(arm, environments[arm.runs], workload, engines.get(arm.engine))
        for arm in arms
    )


def sequential_reasons(run: Run, engines: Mapping[str, Engine]) -> dict[str, str]:
    """Return root -> why it, and all that is compared with it, runs one after the other (``plan.turns.compared``).

    What is compared is measured in one way: an arm that takes no turns would be held against one that does.
    """
    roots = comparison_roots(run.arms)
    running_arms = [arm for arm in run.arms if arm.name not in run.skipped]
    reasons: dict[str, str] = {}
    for name, reason in non_interleaved_arms(running_arms, run.environments, run.workloads, engines).items():
        reasons.setdefault(roots[name], reason)
    return reasons


def single_turn_roots(run: Run, engines: Mapping[str, Engine]) -> set[str]:
    """Return the roots of what takes no turns for no other reason than that a pause would change what it does.

    Its processes can start side by side all the same, and stand still before their warm-up: then each takes all of its
    steps in one go. A program of one's own has no such place.
    """
    roots = comparison_roots(run.arms)
    candidates = set(sequential_reasons(run, engines))
    for arm in run.arms:
        workload = run.workloads[arm.workload]
        pause_arguments = (run.environments[arm.runs], workload, engines.get(arm.engine))
        if arm.name not in run.skipped and (workload.command or _cannot_pause_reason(arm, *pause_arguments)):
            candidates.discard(roots[arm.name])
    return candidates


def _program_reason(workload: Workload) -> str:
    """Say why a program takes no turns, '' when it can: its clock would go on while it stands still."""
    main_metric, *further_metrics = workload.sources.values()
    if not (main_metric.wall or main_metric.steps) or further_metrics:
        return "and reports its own times (only its wall time or its `steps` can be interleaved)"
    return "with a `prepare` line that runs just before it" if workload.prepare else ""


def memory_needs(
    arms: Iterable[Arm], peaks: Mapping[str, int], limit: int | None, usual: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return arm -> the most bytes that its process may need.

    ``peaks`` are the most bytes that a process of an arm has had, ``usual`` that one of a workload has had in any arm,
    ``limit`` what each may have at most.
    """
    workload_estimates = {workload: int(PEAK_MARGIN * peak) for workload, peak in (usual or {}).items()}
    estimates = {
        arm.name: peaks.get(arm.name, workload_estimates.get(arm.workload, DEFAULT_PROCESS_BYTES)) for arm in arms
    }
    return {name: min(need, limit) if limit else need for name, need in estimates.items()}


def usable_memory(free_bytes: int) -> int:
    """Return how many of the bytes that are there processes which live together may take."""
    return int(_MEMORY_SHARE * free_bytes)


def free_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that processes can have now: the machine's, or what is left of this control group's."""
    words = (proc / "meminfo").read_text(encoding="ascii").split()
    available = [1024 * int(words[words.index("MemAvailable:") + 1])]
    for limit_file, usage_file in _CGROUP_FILES:
        try:
            limit = (cgroups / limit_file).read_text(encoding="ascii").strip()
            available += (
                [int(limit) - int((cgroups / usage_file).read_text(encoding="ascii"))] if limit != "max" else []
            )
        except (OSError, ValueError):
            continue
    return max(0, min(available))

"""Which trials may live together and take turns, and why others run one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from envmatrix.engines.base import TakesTurns
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.plan.turns import compared
from envmatrix.trials.experiment import Experiment

#: What a process is taken to need before one of its arm was measured: torch with its libraries takes a third of it.
UNKNOWN_BYTES = 2**30
#: The share of the memory that is there which a group may take.
_SHARE = 0.8
_CGROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def has_one_process(workload: Workload) -> bool:
    """Whether a workload is the built-in benchmark in one process, whose steps are known."""
    options = workload.options
    return not workload.command and {options.get(name, "none") for name in ("parallel", "collective")} == {"none"}


def alone(experiment: Experiment, arm: Arm) -> str:
    """Say why an arm takes no turns, '' when it can."""
    run = experiment.run
    workload, environment = run.workloads[arm.workload], run.environments[arm.runs]
    options = workload.options
    if workload.command:
        return f"workload {arm.workload} is a program of your own, which does not mark its steps"
    if not has_one_process(workload):
        return f"workload {arm.workload} has several processes or devices"
    if options.get("device", "cpu") == "environment" and (environment.variables.get("BENCH_DEVICE") or "cpu") == "cpu":
        options = {**options, "device": "cpu"}
    if options.get("device", "cpu") != "cpu":
        return f"workload {arm.workload} runs on a device whose memory all processes would share"
    if not isinstance(experiment.engines[arm.engine], TakesTurns):
        return f"engine {arm.engine} cannot stop a process for a while"
    if not environment.turns:
        return f"a level of environment {environment.name} says `turns: false`: a pause would change what it does"
    return ""


def sequential(experiment: Experiment) -> dict[str, str]:
    """Return root -> why it, and all that is compared with it, runs one after the other (``plan.turns.compared``).

    What is compared is measured in one way: an arm that takes no turns would be held against one that does.
    """
    arms = experiment.plan.arms
    roots = compared(arms)
    found: dict[str, str] = {}
    for arm in arms:
        reason = alone(experiment, arm)
        if reason:
            found.setdefault(roots[arm.name], reason)
    return found


def needs(arms: Iterable[Arm], peaks: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Return arm -> the most bytes that its process may need.

    ``peaks`` are the most bytes that a process of an arm has had, ``limit`` what each may have at most.
    """
    found = {arm.name: peaks.get(arm.name, UNKNOWN_BYTES) for arm in arms}
    return {name: min(need, limit) if limit else need for name, need in found.items()}


def room(there: int) -> int:
    """Return how many of the bytes that are there processes which live together may take."""
    return int(_SHARE * there)


def free_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that processes can have now: the machine's, or what is left of this control group's."""
    words = (proc / "meminfo").read_text(encoding="ascii").split()
    found = [1024 * int(words[words.index("MemAvailable:") + 1])]
    for most, used in _CGROUPS:
        try:
            limit = (cgroups / most).read_text(encoding="ascii").strip()
            found += [int(limit) - int((cgroups / used).read_text(encoding="ascii"))] if limit != "max" else []
        except (OSError, ValueError):
            continue
    return max(0, min(found))

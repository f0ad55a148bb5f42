"""What the kernel counted for this process: faults, switches, memory, and how others kept it from its CPUs."""

from __future__ import annotations

import glob
import os
import re
import resource
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bench.evidence import cgroup, nvml, tree
from bench.evidence.reading import attempt, text

_MAY_SHRINK = ("run_delay_s", "energy_j")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_RAPL = "/sys/class/powercap/intel-rapl:[0-9]*/energy_uj"


def read() -> dict[str, Any]:
    """Return the running counters of this process (all threads) and the machine's stolen ticks."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "voluntary_switches": usage.ru_nvcsw,
        "involuntary_switches": usage.ru_nivcsw,
        "user_s": usage.ru_utime,
        "system_s": usage.ru_stime,
        "run_delay_s": attempt(_run_delay_s),
        "pressure_s": attempt(_pressure_s),
        "throttled_s": attempt(_throttled_s),
        "others_s": attempt(others_s),
        "energy_j": attempt(_energy_j),
        "gpu_energy_j": attempt(_gpu_energy_j),
        "steal_ticks": _steal_ticks(),
    }


def since(earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much each counter grew; None where it could not be read."""
    current = read()
    grown = {
        name: None if value is None or current[name] is None else current[name] - value
        for name, value in earlier.items()
    }
    # Threads that ended took their waiting with them, and the counter of energy begins anew at its end.
    growth = {
        name: None if name in _MAY_SHRINK and value is not None and value < 0 else value
        for name, value in grown.items()
    }
    others_cpu_s = growth["others_s"]  # a difference of ticks: where nobody else ran it may be some below 0
    return dict(growth, others_s=None if others_cpu_s is None else max(0.0, others_cpu_s))


def _run_delay_s() -> float:
    """Return how long all threads were ready to run while no CPU was free for them.

    https://docs.kernel.org/scheduler/sched-stats.html
    """
    waits = [(text(f"/proc/self/task/{task}/schedstat") or "").split() for task in os.listdir("/proc/self/task")]
    return sum(int(words[1]) for words in waits if len(words) > 1) / 1e9


def _pressure_s() -> float:
    """Return how long any task of the machine (or container) waited: https://docs.kernel.org/accounting/psi.html."""
    return int(re.findall(r"some .*total=(\d+)", text("/proc/pressure/cpu") or "")[0]) / 1e6


def _throttled_s() -> float:
    """Return how long a CPU quota of the control group has held this process back."""
    for folder in cgroup.groups_by_quota():
        cpu_counts = cgroup.cpu_stat(folder)
        if "throttled_usec" in cpu_counts:
            return cpu_counts["throttled_usec"] / 1e6
        if "throttled_time" in cpu_counts:
            return cpu_counts["throttled_time"] / 1e9
    raise OSError("no control group counts it")


def others_s() -> float:
    """Return the CPU time of all CPUs (no idle, no stolen time) less that of this process and all it started."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return (user + nice + system + irq + softirq) / _TICKS_PER_S - own_s - tree.cpu_s_below(os.getpid())


def _energy_j() -> float:
    """Return what all processors have used, where their counters may be read (RAPL; root alone in most kernels)."""
    energies = [int(value) for path in glob.glob(_RAPL) if path.count(":") == 1 and (value := text(path))]
    if not energies:
        raise OSError("no counter of energy may be read")
    return sum(energies) / 1e6


@lru_cache(maxsize=1)
def _gpus() -> nvml.Nvml:
    """Return NVIDIA's library, ready: to begin with it takes longer than to ask it."""
    return nvml.Nvml().__enter__()


def _gpu_energy_j() -> float:
    """Return what all GPUs that this process may ask have used."""
    gpus = _gpus()
    energies = [gpus.energy_mj(number) for number in range(gpus.count())]
    if not energies:
        raise OSError("no GPU counts it")
    return sum(energies) / 1e3


def peak_rss_bytes() -> int | None:
    """Return the peak resident memory of this program.

    VmHWM, not ru_maxrss: the latter survives exec, so it would report a large launcher's memory.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _steal_ticks() -> int | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return int(file.readline().split()[8])
    except (OSError, ValueError, IndexError):
        return None

"""Counters of the kernel for this process: faults, context switches, memory, CPU contention and energy."""

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
    """Return the current counters of this process (all threads), its control group and the machine."""
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
    """Return the growth of each counter since ``earlier``; None if it could not be read."""
    current = read()
    grown = {
        name: None if value is None or current[name] is None else current[name] - value
        for name, value in earlier.items()
    }
    # The waits of ended threads are lost, and the energy counter wraps around.
    growth = {
        name: None if name in _MAY_SHRINK and value is not None and value < 0 else value
        for name, value in grown.items()
    }
    others_cpu_s = growth["others_s"]  # a difference of ticks: it may be slightly negative if nothing else ran
    return dict(growth, others_s=None if others_cpu_s is None else max(0.0, others_cpu_s))


def _run_delay_s() -> float:
    """Return the seconds that all threads were runnable but waiting for a CPU.

    https://docs.kernel.org/scheduler/sched-stats.html
    """
    waits = [(text(f"/proc/self/task/{task}/schedstat") or "").split() for task in os.listdir("/proc/self/task")]
    return sum(int(words[1]) for words in waits if len(words) > 1) / 1e9


def _pressure_s() -> float:
    """Return the seconds any task of the machine or container waited (https://docs.kernel.org/accounting/psi.html)."""
    return int(re.findall(r"some .*total=(\d+)", text("/proc/pressure/cpu") or "")[0]) / 1e6


def _throttled_s() -> float:
    """Return the seconds that a CPU quota of the control group has throttled this process."""
    for folder in cgroup.groups_by_quota():
        cpu_counts = cgroup.cpu_stat(folder)
        if "throttled_usec" in cpu_counts:
            return cpu_counts["throttled_usec"] / 1e6
        if "throttled_time" in cpu_counts:
            return cpu_counts["throttled_time"] / 1e9
    raise OSError("no control group counts it")


def others_s() -> float:
    """Return the CPU time used by other processes: all CPUs (no idle or stolen time) minus this process tree."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return (user + nice + system + irq + softirq) / _TICKS_PER_S - own_s - tree.cpu_s_below(os.getpid())


def _energy_j() -> float:
    """Return the energy used by all processors (RAPL); most kernels let only root read it."""
    energies = [int(value) for path in glob.glob(_RAPL) if path.count(":") == 1 and (value := text(path))]
    if not energies:
        raise OSError("no counter of energy may be read")
    return sum(energies) / 1e6


@lru_cache(maxsize=1)
def _gpus() -> nvml.Nvml:
    """Return NVIDIA's library, initialised once: that takes longer than a query."""
    return nvml.Nvml().__enter__()


def _gpu_energy_j() -> float:
    """Return the energy used by all GPUs that this process may query."""
    gpus = _gpus()
    energies = [gpus.energy_mj(number) for number in range(gpus.count())]
    if not energies:
        raise OSError("no GPU counts it")
    return sum(energies) / 1e3


def peak_rss_bytes() -> int | None:
    """Return the peak resident memory of this program.

    Reads VmHWM, because ru_maxrss survives exec and would include a large launcher's memory.
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

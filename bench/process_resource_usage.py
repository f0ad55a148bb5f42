"""Counters of the kernel for this process: faults, context switches, memory, CPU contention and energy."""

from __future__ import annotations

import glob
import os
import re
import resource
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bench.evidence import cgroup, nvml, proc_files
from bench.evidence.proc_files import TICKS_PER_S
from bench.evidence.reading import attempt, fields, text

_MAY_SHRINK = ("run_delay_s", "energy_j")
_RAPL = "/sys/class/powercap/intel-rapl:[0-9]*/energy_uj"


def read() -> dict[str, Any]:
    """Return the current counters of this process (all threads), its control group and the machine."""
    proc_files.update_own_cpu_times()
    return {
        **usage(resource.RUSAGE_SELF),
        "run_delay_s": proc_files.waited_s(["self"]),
        "pressure_s": attempt(_pressure_s),
        "throttled_s": attempt(_throttled_s),
        "others_s": attempt(others_s),
        "energy_j": attempt(_energy_j),
        "gpu_energy_j": attempt(_gpu_energy_j),
        "steal_ticks": attempt(lambda: _machine_ticks()[7]),
    }


def usage(who: int) -> dict[str, float]:
    """Return the counters of getrusage(2) for this process or its ended children."""
    counted = resource.getrusage(who)
    return {
        "minor_faults": counted.ru_minflt,
        "major_faults": counted.ru_majflt,
        "voluntary_switches": counted.ru_nvcsw,
        "involuntary_switches": counted.ru_nivcsw,
        "user_s": counted.ru_utime,
        "system_s": counted.ru_stime,
    }


def since(earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the growth of each counter since ``earlier``; None if it could not be read."""
    current = read()
    growth = {
        name: None if value is None or current[name] is None else current[name] - value
        for name, value in earlier.items()
    }
    for name in _MAY_SHRINK:  # the waits of ended threads are lost, and the energy counter wraps around
        if (growth[name] or 0) < 0:
            growth[name] = None
    if growth["others_s"] is not None:  # a difference of ticks: it may be slightly negative if nothing else ran
        growth["others_s"] = max(0.0, growth["others_s"])
    return growth


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
    user, nice, system, _, _, irq, softirq, *_ = _machine_ticks()
    own_usages = map(usage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own_s = sum(counted["user_s"] + counted["system_s"] for counted in own_usages)
    return (user + nice + system + irq + softirq) / TICKS_PER_S - own_s - proc_files.cpu_s_below(os.getpid())


def _machine_ticks() -> list[int]:
    """Return what all CPUs together did so far (the first line of /proc/stat)."""
    with open("/proc/stat", encoding="ascii") as file:
        return [int(ticks) for ticks in file.readline().split()[1:]]


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
    return attempt(lambda: int(fields("/proc/self/status")["VmHWM"].split()[0]) * 1024)

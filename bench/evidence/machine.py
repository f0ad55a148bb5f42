"""Evidence on the processor and the operating system."""

from __future__ import annotations

import collections
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from bench import processor
from bench.evidence import proc_files, stop_and_continue_count
from bench.evidence.reading import attempt, fields, first_match, number, text

_CPUS = "/sys/devices/system/cpu"


def cpu_list(cpus: Iterable[int]) -> str:
    """Write CPUs as the kernel does, ranges joined: 0-2,8."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def affinity() -> list[int]:
    """Return the CPUs that this thread may run on, sorted."""
    return sorted(os.sched_getaffinity(0))


def cpu() -> dict[str, Any]:
    """Return the CPU's model, counts and frequency policy, and the CPU sets of this process's threads."""
    cpuinfo, info = text("/proc/cpuinfo") or "", fields("/proc/cpuinfo")
    return {
        "model": processor.model(cpuinfo) or os.uname().machine,
        "architecture": os.uname().machine,
        "microcode": info.get("microcode"),
        "flags": processor.instruction_sets(cpuinfo),
        "logical": os.cpu_count(),
        "physical": attempt(lambda: len(_topology("core_cpus_list") or _topology("thread_siblings_list")) or None),
        "sockets": attempt(lambda: len(_topology("physical_package_id"))),
        "smt": text(_CPUS + "/smt/control"),
        "governor": text(_CPUS + "/cpu0/cpufreq/scaling_governor"),
        "driver": text(_CPUS + "/cpu0/cpufreq/scaling_driver"),
        "turbo": attempt(_turbo),
        "vulnerabilities": attempt(_vulnerabilities),
        "thread_affinity": attempt(_thread_affinity),
    }


def _topology(name: str) -> set[str]:
    """Return the different values of one kind that the CPUs have."""
    folders = [folder for folder in os.listdir(_CPUS) if re.fullmatch(r"cpu\d+", folder)]
    return {value for folder in folders if (value := text(f"{_CPUS}/{folder}/topology/{name}")) is not None}


def _turbo() -> bool | None:
    blocked = number(_CPUS + "/intel_pstate/no_turbo")
    if blocked is not None:
        return not blocked
    boost = number(_CPUS + "/cpufreq/boost")
    return None if boost is None else bool(boost)


def _vulnerabilities() -> dict[str, str]:
    """Return the kernel's status for each known CPU vulnerability: not affected, vulnerable, or the mitigation."""
    folder = _CPUS + "/vulnerabilities"
    return {name: status for name in sorted(os.listdir(folder)) if (status := text(f"{folder}/{name}"))}


def _thread_affinity() -> dict[str, int]:
    """Return the number of threads per CPU list; it shows where a bound OpenMP team runs."""
    counts: collections.Counter[str | None] = collections.Counter()
    for thread in proc_files.threads("self"):
        counts[fields(f"/proc/self/task/{thread}/status").get("Cpus_allowed_list")] += 1
    return {cpus: count for cpus, count in sorted(counts.items(), key=str) if cpus}


def frequency() -> float | None:
    """Return the current mean clock in MHz of the CPUs that this process may run on, or None if unknown."""
    own_cpus, speeds, cpu = set(affinity()), [], None
    for line in (text("/proc/cpuinfo") or "").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "processor":
            cpu = int(value)
        elif name == "cpu MHz" and cpu in own_cpus:
            speeds.append(float(value))
    return sum(speeds) / len(speeds) if speeds else None


def system() -> dict[str, Any]:
    """Return kernel, C library, Python and other facts of the system."""
    return {
        "kernel": os.uname().release,
        "distribution": first_match(r'(?m)^PRETTY_NAME="?([^"\n]*)', text("/etc/os-release")),
        "libc": attempt(_libc) or None,
        "python": sys.version.split()[0],
        # Python 3.13 added the first function and 3.14 the second; older ones have a GIL and no JIT.
        "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
        "jit": attempt(lambda: bool(getattr(sys, "_jit").is_enabled())),  # noqa: B009 - not there in most
        "executable": sys.executable,
        "clock_source": text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "aslr": number("/proc/sys/kernel/randomize_va_space"),
        "stops": stop_and_continue_count.count(),
        "uptime_s": attempt(lambda: float((text("/proc/uptime") or "").split()[0])),
    }


def _libc() -> str:
    """Return the C library and its version, read from the Python's file if it is not glibc."""
    version = attempt(lambda: os.confstr("CS_GNU_LIBC_VERSION"))
    if version:
        return version
    import platform

    return " ".join(part for part in platform.libc_ver() if part)

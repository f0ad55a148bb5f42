"""The processor and the system below."""

from __future__ import annotations

import collections
import os
import platform
import re
import sys
from typing import Any

from bench.evidence import dynamic, stops
from bench.evidence.reading import attempt, fields, number, text

_CPUS = "/sys/devices/system/cpu"


def affinity() -> list[int]:
    """Return the CPUs that this thread may run on, sorted."""
    return sorted(os.sched_getaffinity(0))


def cpu() -> dict[str, Any]:
    """Return model, counts, frequency policy and where each thread may run."""
    info = fields("/proc/cpuinfo")
    return {
        "model": info.get("model name") or info.get("Model") or platform.machine(),
        "architecture": platform.machine(),
        "microcode": info.get("microcode"),
        "flags": attempt(
            lambda: sorted(set((info.get("flags") or info["Features"]).split()) & set(_INSTRUCTION_SETS.split()))
        ),
        "logical": os.cpu_count(),
        "physical": attempt(_physical_cores),
        "sockets": attempt(lambda: len(_topology("physical_package_id"))),
        "smt": text(_CPUS + "/smt/control"),
        "governor": text(_CPUS + "/cpu0/cpufreq/scaling_governor"),
        "driver": text(_CPUS + "/cpu0/cpufreq/scaling_driver"),
        "turbo": attempt(_turbo),
        "vulnerabilities": attempt(_vulnerabilities),
        "thread_affinity": attempt(_thread_affinity),
    }


#: The instruction sets that PyTorch's kernels, oneDNN and MKL choose by (x86, then Arm).
_INSTRUCTION_SETS = """
    sse4_2 avx avx2 fma avx512f avx512bw avx512vl avx512_vnni avx512_bf16 avx512_fp16 avx_vnni amx_tile
    amx_bf16 amx_int8 hypervisor asimd sve sve2 bf16 i8mm
"""


def _topology(name: str) -> set[str]:
    values = set()
    for folder in os.listdir(_CPUS):
        if re.fullmatch(r"cpu\d+", folder):
            value = text(f"{_CPUS}/{folder}/topology/{name}")
            if value is not None:
                values.add(value)
    return values


def _physical_cores() -> int | None:
    siblings = _topology("core_cpus_list") or _topology("thread_siblings_list")
    return len(siblings) or None


def _turbo() -> bool | None:
    blocked = number(_CPUS + "/intel_pstate/no_turbo")
    if blocked is not None:
        return not blocked
    boost = number(_CPUS + "/cpufreq/boost")
    return None if boost is None else bool(boost)


def _vulnerabilities() -> dict[str, str]:
    """Return what the kernel says of each known flaw: not affected, vulnerable, or which mitigation costs time."""
    folder = _CPUS + "/vulnerabilities"
    return {name: said for name in sorted(os.listdir(folder)) if (said := text(f"{folder}/{name}"))}


def _thread_affinity() -> dict[str, int]:
    """Count the threads per CPU list, the proof of where a pinned OpenMP team sits."""
    counts: collections.Counter[str | None] = collections.Counter()
    for task in os.listdir("/proc/self/task"):
        counts[fields(f"/proc/self/task/{task}/status").get("Cpus_allowed_list")] += 1
    return {cpus: count for cpus, count in sorted(counts.items(), key=str) if cpus}


def frequency() -> float | None:
    """Return the mean clock in MHz, as the kernel tells it now, of the CPUs that this process may run on, or None."""
    own_cpus, speeds, cpu = set(affinity()), [], None
    for line in (text("/proc/cpuinfo") or "").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "processor":
            cpu = int(value)
        elif name == "cpu MHz" and cpu in own_cpus:
            speeds.append(float(value))
    return sum(speeds) / len(speeds) if speeds else None


def system() -> dict[str, Any]:
    """Return kernel, C library and Python."""
    return {
        "kernel": platform.release(),
        "distribution": attempt(_distribution),
        "libc": attempt(lambda: " ".join(part for part in platform.libc_ver() if part)) or None,
        "python": platform.python_version(),
        # Both are asked for since Python 3.13 and 3.14; before that there is one lock, and no compiler to ask.
        "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
        "jit": attempt(lambda: bool(getattr(sys, "_jit").is_enabled())),  # noqa: B009 - not there in most
        "executable": sys.executable,
        "clock_source": text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "aslr": number("/proc/sys/kernel/randomize_va_space"),
        "stops": stops.count(),
        "uptime_s": attempt(lambda: float((text("/proc/uptime") or "").split()[0])),
    }


def _distribution() -> str | None:
    with open("/etc/os-release", encoding="utf-8") as file:
        match = re.search(r'^PRETTY_NAME="?([^"\n]*)', file.read(), re.MULTILINE)
    return match[1] if match else None


def libraries() -> list[str]:
    """Return the shared libraries that are loaded (not: that serve)."""
    return dynamic.loaded_paths()

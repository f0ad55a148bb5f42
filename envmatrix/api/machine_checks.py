"""The checks of ``envmatrix doctor``: each is a function that reads the machine and yields findings."""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from envmatrix.build.paths import project_paths
from envmatrix.engines.catalog import ENGINES
from envmatrix.launchers import doctor_software_checks as software
from envmatrix.launchers.catalog import LAUNCHERS
from envmatrix.launchers.doctor_software_checks import Finding, State, bad, good, note, read_system_file
from envmatrix.report.catalog import REPORTS
from envmatrix.system import resource_paths
from envmatrix.system.plugins import ExtensionError

_GIB = 2**30
_MIN_FREE_BYTES = 6 * _GIB
_STEAL_WINDOW_S = 0.5
_NEIGHBOUR_WINDOW_S = 2.0
_CGROUPS = "/sys/fs/cgroup"
#: CPU controller -> mount points, by its name in /proc/self/cgroup (cgroup version 2 has an empty name).
_MOUNTS = {"cpu": (f"{_CGROUPS}/cpu", f"{_CGROUPS}/cpu,cpuacct"), "": (_CGROUPS, f"{_CGROUPS}/unified")}


def check_governor(root: Path) -> Iterator[Finding]:
    """Check the CPU frequency governor."""
    value = read_system_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", root)
    if not value:
        yield note("frequency governor", "not visible (usual in virtual machines)")
    elif value == "performance":
        yield good("frequency governor", value)
    else:
        yield bad("frequency governor", value, "sudo cpupower frequency-set --governor performance")


def check_turbo(root: Path) -> Iterator[Finding]:
    """Check whether turbo is on, which lets clocks rise above the nominal frequency."""
    no_turbo = read_system_file("/sys/devices/system/cpu/intel_pstate/no_turbo", root)
    boost = read_system_file("/sys/devices/system/cpu/cpufreq/boost", root)
    if no_turbo == "0" or boost == "1":
        yield note("turbo", "on: the clock changes with heat and load", "turn it off for narrower intervals")
    elif no_turbo or boost:
        yield good("turbo", "off")


def check_load(root: Path) -> Iterator[Finding]:
    """Check the load average."""
    words = read_system_file("/proc/loadavg", root).split()
    cpus = len(os.sched_getaffinity(0))
    if not words:
        return
    load_average = float(words[0])
    state: State = "bad" if load_average > 0.3 * cpus else "good"
    remedy = "wait until the machine is quiet, or stop other programs" if state == "bad" else ""
    yield Finding("load", state, f"{load_average:.2f} in the last minute on {cpus} CPUs", remedy)


def _steal_ticks(root: Path) -> tuple[int, int]:
    words = read_system_file("/proc/stat", root).split("\n")[0].split()[1:]
    ticks = [int(word) for word in words]
    return (ticks[7] if len(ticks) > 7 else 0), sum(ticks[:8])


def check_steal(root: Path) -> Iterator[Finding]:
    """Measure for half a second how much CPU time the hypervisor takes away."""
    if not read_system_file("/proc/stat", root):
        return
    stolen, total = _steal_ticks(root)
    time.sleep(_STEAL_WINDOW_S)
    stolen_after, total_after = _steal_ticks(root)
    share = (stolen_after - stolen) / max(1, total_after - total)
    if share > 0.01:
        yield bad("steal time", f"{share:.1%}", "another virtual machine uses these CPUs; expect wider intervals")
    else:
        yield good("steal time", f"{share:.1%}")


def check_other_processes(root: Path) -> Iterator[Finding]:
    """Measure for two seconds how much CPU time the threads of other processes use."""
    ticks_before = _thread_ticks(root)
    if not ticks_before:
        return
    time.sleep(_NEIGHBOUR_WINDOW_S)
    rate = 1 / _NEIGHBOUR_WINDOW_S / os.sysconf("SC_CLK_TCK")
    busy = [
        ((ticks - ticks_before.get(key, (0, ""))[0]) * rate, f"{name} (process {key[0]})")
        for key, (ticks, name) in _thread_ticks(root).items()
        if key[0] != os.getpid()
    ]
    busiest = sorted((share, name) for share, name in busy if share > 0.02)[::-1]
    busiest_text = ", ".join(f"{name} {share:.0%} of a CPU" for share, name in busiest[:3])
    if sum(share for share, _ in busiest) > 0.1:
        yield bad("other threads", busiest_text, "stop them while you measure: they take CPU time from trials")
    else:
        yield good("other threads", busiest_text or "none uses 2% of a CPU")


def _thread_ticks(root: Path) -> dict[tuple[int, int], tuple[int, str]]:
    """Return (process, thread) -> (CPU ticks so far, name)."""
    ticks = {}
    names = glob.glob("proc/[0-9]*/task/[0-9]*/stat", root_dir=root)  # noqa: PTH207 - Path.glob fails if a process ends
    for file in (root / name for name in names):
        try:
            head, _, tail = file.read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:  # the thread has ended
            continue
        words = tail.split()
        ticks[int(file.parts[-4]), int(file.parts[-2])] = (int(words[11]) + int(words[12]), head.partition("(")[2])
    return ticks


def check_huge_pages(root: Path) -> Iterator[Finding]:
    """Check transparent huge pages: with `never`, the huge-page levels have no effect."""
    text = read_system_file("/sys/kernel/mm/transparent_hugepage/enabled", root)
    mode = text[text.find("[") + 1 : text.find("]")] if "[" in text else ""
    if mode == "never":
        yield note("transparent huge pages", "never: huge-page levels have no effect here")
    elif mode:
        yield good("transparent huge pages", mode)


@dataclass(frozen=True)
class Quota:
    """A CPU quota: ``cpus`` in CPUs, ``group`` that sets it, ``used_up`` the fraction of periods it throttled."""

    cpus: float
    group: str
    used_up: float | None


def tightest_quota(root: Path) -> Quota | None:
    """Return the tightest CPU quota, None without one."""
    quotas = [entry for group in _control_groups(root) for entry in [_read_quota(group, root)] if entry]
    return min(quotas, key=lambda entry: entry.cpus, default=None)


def check_cpu_quota(root: Path) -> Iterator[Finding]:
    """Check for a CPU quota: OpenMP runtimes do not see it and start too many threads."""
    tightest = tightest_quota(root)
    if tightest:
        used_text = (
            "" if tightest.used_up is None else f"; the limit was reached in {tightest.used_up:.0%} of its periods"
        )
        yield bad(
            "CPU quota",
            f"the CPU time of {tightest.cpus:g} CPUs, set by {tightest.group}{used_text}",
            "use a CPU set instead (cpuset, taskset), or at most that many threads: `envmatrix docs cpu-limit`",
        )


def _control_groups(root: Path) -> Iterator[str]:
    """Yield this process's groups and those above, up to the mounts, as a container sees its group there."""
    own_paths = {"cpu": "/", "": "/"}
    for line in read_system_file("/proc/self/cgroup", root).splitlines():
        _, controllers, path = line.split(":", 2)
        own_paths.update({name: path for name in controllers.split(",") if name in own_paths})
    for name, mounts in _MOUNTS.items():
        parts = [part for part in own_paths[name].split("/") if part]
        yield from ("/".join([mount, *parts[:depth]]) for mount in mounts for depth in range(len(parts), -1, -1))


def _read_quota(group: str, root: Path) -> Quota | None:
    words = read_system_file(f"{group}/cpu.max", root).split() or [
        read_system_file(f"{group}/cpu.cfs_{name}_us", root) for name in ("quota", "period")
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":  # "max", "-1" or no such file
        return None
    counts = dict(
        line.split() for line in read_system_file(f"{group}/cpu.stat", root).splitlines() if len(line.split()) == 2
    )
    periods = int(counts.get("nr_periods", 0))
    used_up = int(counts.get("nr_throttled", 0)) / periods if periods else None
    return Quota(int(words[0]) / int(words[1]), group, used_up)


def check_disk(_root: Path) -> Iterator[Finding]:
    """Check the free disk space for images and venvs, and whether the cache folder can be written."""
    folder = resource_paths.cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    state: State = "good" if free > _MIN_FREE_BYTES else "bad"
    remedy = "" if state == "good" else "free some space, or point ENVMATRIX_CACHE to a larger disk"
    yield Finding("disk", state, f"{free / _GIB:.1f} GiB free for {folder}", remedy)
    if not os.access(existing, os.W_OK):
        yield bad("cache", f"{existing} is not writable", "point ENVMATRIX_CACHE to a folder that you can write to")


def check_apt_tools(_root: Path) -> Iterator[Finding]:
    """Check whether system libraries can be fetched without root."""
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        yield good("system libraries", "apt-get can download jemalloc and others to the cache, without root")
    else:
        remedy = "dnf install jemalloc gperftools-libs mimalloc, or conda install -c conda-forge jemalloc mimalloc"
        yield note("system libraries", "no apt-get: envmatrix can use only installed libraries", remedy)


def check_engines(_root: Path) -> Iterator[Finding]:
    """Check whether each engine is available."""
    for entry, engine in ENGINES.make_all(project_paths()):
        finding = _availability_finding("engine", entry.name, engine)
        isolation = "" if isinstance(engine, ExtensionError) or finding.state != "good" else engine.isolation
        yield replace(finding, found=f"{finding.found}: {isolation}") if isolation else finding


def check_launchers(_root: Path) -> Iterator[Finding]:
    """Check whether each launcher is available."""
    for entry, launcher in LAUNCHERS.make_all():
        yield _availability_finding("launcher", entry.name, launcher)


class _Usable(Protocol):
    def unavailable(self) -> str | None: ...


def _availability_finding(kind: str, name: str, extension: _Usable | ExtensionError) -> Finding:
    if isinstance(extension, ExtensionError):
        return bad(f"{kind} {name}", extension.message, extension.remedy)
    reason, _, remedy = (extension.unavailable() or "").partition("\n  -> ")
    return Finding(f"{kind} {name}", "note" if reason else "good", reason or "ready", remedy)


def check_extensions(_root: Path) -> Iterator[Finding]:
    """Check the extensions of other packages: names that are ignored, and reports that do not load."""
    for text in (*ENGINES.notes(), *LAUNCHERS.notes(), *REPORTS.notes()):
        yield note("extension", text, "its package has to use another name")
    for entry, report in REPORTS.make_all():
        if isinstance(report, ExtensionError):
            yield bad(f"report {entry.name}", report.message, report.remedy)
        elif entry.origin:
            yield good(f"report {entry.name}", f"of {entry.origin}")


CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    check_governor,
    check_turbo,
    check_load,
    check_steal,
    check_other_processes,
    check_huge_pages,
    check_cpu_quota,
    check_disk,
    check_apt_tools,
    check_engines,
    check_launchers,
    software.check_memory_limits_and_cache,
    software.check_apptainer,
    software.check_enroot,
    software.check_podman_storage,
    software.check_slurm,
    software.check_modules,
    software.check_cuda,
    software.check_tpu,
    check_extensions,
)


def examine(root: Path = Path("/")) -> list[Finding]:
    """Run every check; ``root`` is the folder with /proc and /sys."""
    return [finding for check in CHECKS for finding in check(root)]

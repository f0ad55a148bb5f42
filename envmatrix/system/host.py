"""Facts about this machine, for templates in matrix.yaml and for run.json.

This file also runs alone, on a host without envmatrix (launchers/ssh.py).
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envmatrix.system.shared_bench_modules import Processor

_NODES = Path("/sys/devices/system/node")
_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"
#: PCI classes of what computes: a display controller, a 3D controller, a processing accelerator.
_GPU_CLASSES = ("0x0300", "0x0302", "0x1200")


@dataclass(frozen=True)
class Host:
    """The machine as this process sees it. ``cpus`` are those it may use; sizes are in bytes.

    ``gpu_cpus`` are the CPUs next to the first GPU (empty: there is none).

    Of the nodes of a cluster only what the scheduler knows is here; the rest is None, and each trial's evidence has it
    (``stats.observed_host``).
    """

    name: str
    kernel: str | None
    machine: str | None
    distribution: str | None
    cpu_model: str | None
    cpus: tuple[int, ...]
    physical_cpus: tuple[int, ...]
    numa_nodes: int | None
    memory_bytes: int | None
    hypervisor: bool | None
    gpu_cpus: tuple[int, ...] | None = None

    @property
    def memory_nodes(self) -> tuple[int, ...]:
        """The memory nodes that this process may use; empty if unknown, as for a cluster node."""
        allowed = status_field("Mems_allowed_list") if self.kernel is not None else ""
        return parse_cpus(allowed) if allowed else ()

    def node_facts(self, cpus: Iterable[int]) -> dict[str, str]:
        """Return the first NUMA node that has some of ``cpus``, and these; nothing if the machine does not say it."""
        if self.kernel is None:  # a node of a cluster
            return {}
        nodes = sorted(_NODES.glob("node[0-9]*"), key=lambda folder: int(folder.name[4:]))
        on_nodes = ((folder.name[4:], _read(folder / "cpulist")) for folder in nodes)
        listed = ((node, sorted(set(parse_cpus(text)).intersection(cpus))) for node, text in on_nodes if text)
        for node, local in listed:
            if local:
                return {"first_node": node, "first_node_cpu_list": format_cpus(local)}
        return {}

    def facts(self, cpus: Iterable[int] = ()) -> dict[str, str]:
        """Return the known values of matrix.yaml's templates, for the CPUs a trial is limited to."""
        trial_cpus = tuple(cpus) or self.cpus
        physical = tuple(cpu for cpu in self.physical_cpus if cpu in trial_cpus) or trial_cpus
        numa_facts = {} if self.numa_nodes is None else {"numa_nodes": str(self.numa_nodes)}
        if near_gpu := [cpu for cpu in self.gpu_cpus or () if cpu in trial_cpus]:
            numa_facts["gpu_cpu_list"] = format_cpus(near_gpu)
        return (
            numa_facts
            | self.node_facts(trial_cpus)
            | {
                "logical_cpus": str(len(trial_cpus)),
                "physical_cores": str(len(physical)),
                "cpu_list": format_cpus(trial_cpus),
                "physical_cpu_list": format_cpus(physical),
                "last_cpu": str(max(trial_cpus)),
            }
        )

    def facts_with_stand_ins(self, cpus: Iterable[int] = ()) -> dict[str, str]:
        """Return ``facts`` with a stand-in for each that this machine lacks and another one may have, such as a GPU."""
        facts = self.facts(cpus)
        one_node = {"numa_nodes": "1", "first_node": "0", "first_node_cpu_list": facts["cpu_list"]}
        return {**one_node, "gpu_cpu_list": facts["cpu_list"], **facts}

    def to_json(self) -> dict[str, Any]:
        """Return the host's part of run.json."""
        return asdict(self)


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse a Linux CPU list such as '0-3,8'. Raises ValueError if it is invalid."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        number = first.isdecimal() and last.isdecimal() and len(last) < 6  # no machine has this many
        if not number or int(last) < int(first):
            msg = f"{text!r} is not a CPU list, such as 0-3,8"
            raise ValueError(msg)
        cpus.update(range(int(first), int(last) + 1))
    return tuple(sorted(cpus))


def format_cpus(cpus: Iterable[int]) -> str:
    """Format a Linux CPU list with ranges: (0, 1, 2, 8) -> '0-2,8'."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def has_gpu(root: Path = Path("/")) -> bool:
    """Return whether this machine has an NVIDIA GPU (in Windows' subsystem for Linux: /dev/dxg)."""
    return any((root / "dev").glob("nvidia[0-9]*")) or (root / "dev/dxg").exists()


def has_intel_gpu(root: Path = Path("/")) -> bool:
    """Return whether this machine has a GPU of Intel."""
    return any(_read(vendor) == _INTEL for vendor in (root / "sys/class/drm").glob("renderD*/device/vendor"))


def has_any_gpu(root: Path = Path("/")) -> bool:
    """Return whether this machine has a GPU that PyTorch can use (AMD: kfd; Jetson: nvgpu)."""
    return (
        has_gpu(root)
        or has_intel_gpu(root)
        or any((root / "dev" / name).exists() for name in ("kfd", "nvgpu", "nvhost-gpu"))
    )


def cpus_of_gpu(root: Path = Path("/")) -> tuple[int, ...]:
    """Return the CPUs of the NUMA node that the first GPU hangs on, as the kernel says it of its PCI address.

    The first is that of the lowest address, as with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        is_gpu = _read(device / "vendor") in (_NVIDIA, _AMD) and _read(device / "class").startswith(_GPU_CLASSES)
        if is_gpu and (listed := _read(device / "local_cpulist")):
            return parse_cpus(listed)
    return ()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _one_per_core(cpus: Iterable[int], root: Path) -> tuple[int, ...]:
    """Return the first CPU of each physical core (SMT siblings share one)."""
    cores: set[str] = set()
    first_cpus = []
    for cpu in cpus:
        siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        if siblings not in cores:
            cores.add(siblings)
            first_cpus.append(cpu)
    return tuple(first_cpus)


def status_field(name: str) -> str:
    """Return a value of this process's /proc/self/status (proc_pid_status(5)); '' if it is not there."""
    lines = (line.partition(":") for line in _read(Path("/proc/self/status")).splitlines())
    return next((value.strip() for key, _, value in lines if key == name), "")


def os_release() -> Mapping[str, str]:
    """Return the facts about this machine's distribution (os-release(5)); {} if it has none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def this_host(root: Path = Path("/"), processor: Processor | None = None) -> Host:
    """Collect the facts about this machine; ``root`` is the folder that has its /proc and /sys.

    ``processor`` is the module ``bench/processor.py``, which is loaded if it is not given.
    """
    if processor is None:
        from envmatrix.system import shared_bench_modules

        processor = shared_bench_modules.processor
    cpuinfo = _read(root / "proc/cpuinfo")
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    return Host(
        name=socket.gethostname(),
        kernel=platform.release(),
        machine=platform.machine(),
        distribution=os_release().get("PRETTY_NAME") or None,
        cpu_model=processor.model(cpuinfo) or platform.processor() or None,
        cpus=cpus,
        physical_cpus=_one_per_core(cpus, root),
        numa_nodes=max(1, nodes),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        hypervisor=processor.is_virtual(cpuinfo, platform.machine()),
        gpu_cpus=cpus_of_gpu(root),
    )

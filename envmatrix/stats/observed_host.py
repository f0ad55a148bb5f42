"""The machine of a run on a cluster, as observed by its trials."""

from __future__ import annotations

import json
from dataclasses import replace

from envmatrix.stats.measurements import Measurements
from envmatrix.system.host import Host


def observed_host(host: Host, measured: Measurements) -> Host:
    """Return the host of a run; if it is cluster nodes, with the facts that its trials observed.

    A fact is None if no trial has it or trials disagree. The distribution is not set: a trial sees that of its image.
    """
    if host.kernel is not None:
        return host
    architecture, flags = _agreed_text(measured, "cpu.architecture"), _agreed_value(measured, "cpu.flags")
    is_x86 = architecture == "x86_64"  # other kernels do not say whether they run on a hypervisor
    return replace(
        host,
        kernel=_agreed_text(measured, "system.kernel"),
        machine=architecture,
        cpu_model=_agreed_text(measured, "cpu.model"),
        numa_nodes=_agreed_integer(measured, "memory.numa_nodes"),
        memory_bytes=_agreed_integer(measured, "memory.total_bytes"),
        hypervisor="hypervisor" in flags if is_x86 and isinstance(flags, list) else None,
    )


def _agreed_text(measured: Measurements, path: str) -> str | None:
    value = _agreed_value(measured, path)
    return value if isinstance(value, str) else None


def _agreed_integer(measured: Measurements, path: str) -> int | None:
    value = _agreed_value(measured, path)
    return value if isinstance(value, int) else None


def _agreed_value(measured: Measurements, path: str) -> object:
    values = list(measured.machine.get(path, ()))
    return json.loads(values[0]) if len(values) == 1 else None

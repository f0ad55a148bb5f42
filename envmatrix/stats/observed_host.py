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
    facts = {path: json.loads(next(iter(values))) for path, values in measured.machine.items() if len(values) == 1}
    texts = {path: value for path, value in facts.items() if isinstance(value, str)}
    numbers = {path: value for path, value in facts.items() if isinstance(value, int)}
    architecture, flags = texts.get("cpu.architecture"), facts.get("cpu.flags")
    is_x86 = architecture == "x86_64"  # other kernels do not say whether they run on a hypervisor
    return replace(
        host,
        kernel=texts.get("system.kernel"),
        machine=architecture,
        cpu_model=texts.get("cpu.model"),
        numa_nodes=numbers.get("memory.numa_nodes"),
        memory_bytes=numbers.get("memory.total_bytes"),
        hypervisor="hypervisor" in flags if is_x86 and isinstance(flags, list) else None,
    )

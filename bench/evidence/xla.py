"""Evidence on torch_xla: its version and device, and how often and how long it compiled."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from bench.evidence.reading import attempt


def collect() -> dict[str, Any] | None:
    """Return the evidence on XLA: None if it is not installed, only its version if it was not used."""
    if importlib.util.find_spec("torch_xla") is None:
        return None
    from importlib import metadata

    version = attempt(lambda: metadata.version("torch_xla"))
    evidence = {"version": version, "device_wanted": os.environ.get("PJRT_DEVICE"), "used": False}
    if "torch_xla" not in sys.modules and os.environ.get("BENCH_DEVICE") != "xla":
        return evidence  # importing it would start a runtime
    return dict(evidence, used=True, **(attempt(_device_facts) or {}))


def _device_facts() -> dict[str, Any]:
    core = importlib.import_module("torch_xla.core.xla_model")
    runtime = importlib.import_module("torch_xla.runtime")
    return {
        "device": attempt(runtime.device_type),
        "hardware": attempt(lambda: core.xla_device_hw(core.xla_device())),
        **compile_counters(),
    }


def compile_counters() -> dict[str, Any]:
    """Return the number of compiled graphs, the seconds this took, and the operators that ran outside XLA."""
    metrics = importlib.import_module("torch_xla.debug.metrics")
    compile_data = metrics.metric_data("CompileTime")
    execute_data = metrics.metric_data("ExecuteTime")
    return {
        "compile_count": compile_data[0] if compile_data else 0,
        "compile_s": compile_data[1] / 1e9 if compile_data else 0.0,
        "execute_count": execute_data[0] if execute_data else 0,
        # An operator that XLA lacks runs on the CPU between two graphs, and both sides wait for it.
        "fallbacks": {
            name: metrics.counter_value(name) for name in metrics.counter_names() if name.startswith("aten::")
        },
    }

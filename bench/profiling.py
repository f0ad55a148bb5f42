"""A profile of where a step's time goes, in a separate pass after the timed part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from bench import gpu_time_parts, memory_system_calls
from bench.dataset_tensors import Batch
from bench.devices import Device
from bench.steps import Step


def profile(step: Step, source: Iterator[Batch], steps: int, device: Device) -> dict[str, Any]:
    """Return the phases of ``steps`` steps, what torch.profiler shows of as many, and memory calls of as many more.

    All processes take the same steps, whether or not their system calls can be counted.
    """

    def take() -> None:
        for _ in range(steps):
            step(next(source))
        device.wait()

    phases_ns = _phases(step, source, steps, device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.name == "cuda" else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        take()
    return {
        "steps": steps,
        "phases_ns": phases_ns,
        "operators": _operators(profiler, device),
        "gpu": gpu_time_parts.parts(profiler.events(), device.device.index) if device.name == "cuda" else None,
        "memory_calls": memory_system_calls.count(take),
    }


def _phases(step: Step, source: Iterator[Batch], steps: int, device: Device) -> dict[str, int]:
    """Return nanoseconds per phase: data, forward, loss, backward, optimizer (inference: data, forward).

    Waits for the device after each phase, so that asynchronous work counts in the phase that started it.
    """
    totals = {"data": 0}
    last = time.perf_counter_ns()

    def mark(phase: str) -> None:
        nonlocal last
        device.wait()
        now = time.perf_counter_ns()
        totals[phase] = totals.get(phase, 0) + now - last
        last = now

    for _ in range(steps):
        batch = next(source)
        mark("data")
        step(batch, mark)
    return totals


def _operators(profiler: Any, device: Device) -> list[dict[str, Any]]:
    """Return the aten operators, most expensive first; ``self_ns`` excludes the operators they call.

    On a GPU, both times are those of the kernels that an operator started.
    """
    timed = [(event, _micros(event, "self_", device), _micros(event, "", device)) for event in profiler.key_averages()]
    # Separate rows for kernels repeat times of their operators' rows.
    rows = [row for row in timed if row[1] > 0 and row[0].device_type == torch.autograd.DeviceType.CPU]
    total_ns = sum(self_ns for _, self_ns, _ in rows)
    rows.sort(key=lambda row: -row[1])
    return [
        {
            "name": event.key,
            "calls": event.count,
            "self_ns": round(self_ns * 1000),
            "total_ns": round(total_time_ns * 1000),
            "share": self_ns / total_ns,
        }
        for event, self_ns, total_time_ns in rows
    ]


def _micros(event: Any, prefix: str, device: Device) -> float:
    """Return an event's microseconds on the device; torch 2.4 renamed the attributes for GPUs."""
    names = [f"{prefix}cpu_time_total"]
    if device.name == "cuda":
        names = [f"{prefix}device_time_total", f"{prefix}cuda_time_total"]
    return float(next(getattr(event, name) for name in names if hasattr(event, name)))

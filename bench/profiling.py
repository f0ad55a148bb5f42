"""Where a step's time goes: a pass of its own after the timed part, so that looking slows nothing timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.tensors import Batch


def profile(step: Callable[..., object], source: Iterator[Batch], steps: int) -> dict[str, Any]:
    """Return phases of ``steps`` steps, and the operators of as many more under torch.profiler."""
    return {
        "steps": steps,
        "phases_ns": _phases(step, source, steps),
        "operators": _operators(step, source, steps),
    }


def _phases(step: Callable[..., object], source: Iterator[Batch], steps: int) -> dict[str, int]:
    """Return nanoseconds per phase: data, forward, loss, backward, optimizer (inference: data, forward)."""
    totals = {"data": 0}
    last = time.perf_counter_ns()

    def mark(phase: str) -> None:
        nonlocal last
        now = time.perf_counter_ns()
        totals[phase] = totals.get(phase, 0) + now - last
        last = now

    for _ in range(steps):
        images, labels = next(source)
        mark("data")
        step(images, labels, mark)
    return totals


def _operators(step: Callable[..., object], source: Iterator[Batch], steps: int) -> list[dict[str, Any]]:
    """Return the aten operators, most expensive first; ``self_ns`` is without the operators they call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step(*next(source))
    rows = [event for event in profiler.key_averages() if event.self_cpu_time_total > 0]
    total = sum(event.self_cpu_time_total for event in rows)
    rows.sort(key=lambda event: -event.self_cpu_time_total)
    return [
        {
            "name": event.key,
            "calls": event.count,
            "self_ns": round(event.self_cpu_time_total * 1000),
            "total_ns": round(event.cpu_time_total * 1000),
            "share": event.self_cpu_time_total / total,
        }
        for event in rows
    ]

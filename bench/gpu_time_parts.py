"""A GPU's time in a profiled pass, in parts that add up: kernels, copies, waits for collectives, and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

#: How the profiler names copies and NCCL's (or RCCL's) kernels; anything else on the device is a kernel.
_COPIES, _COLLECTIVES = ("Memcpy", "Memset"), ("nccl", "rccl")
Interval = tuple[float, float]


def parts(events: Sequence[Any], device: int | None) -> dict[str, int] | None:
    """Return nanoseconds from the first to the last work on a device by part; None if the profiler saw no work there.

    ``events`` are torch.profiler's. A copy or collective counts only while no kernel runs; ``gap_ns`` is the time in
    which nothing ran, because the host had not launched it yet.
    """
    work = _work(events, device)
    if not work:
        return None
    kinds: dict[str, list[Interval]] = {"kernel_ns": [], "copy_ns": [], "collective_ns": []}
    for name, interval in work:
        kinds[_kind(name)].append(interval)
    time_by_part, covered, seen = {}, 0.0, []
    for kind, intervals in kinds.items():
        seen += intervals
        until_here = _length(seen)
        time_by_part[kind] = until_here - covered
        covered = until_here
    span = max(end for _, end in seen) - min(start for start, _ in seen)
    return {name: round(1000 * micros) for name, micros in {**time_by_part, "gap_ns": span - covered}.items()}


def _work(events: Sequence[Any], device: int | None) -> list[tuple[str, Interval]]:
    """Return name and microseconds of everything that ran on the device.

    The profiler repeats the host's ranges (``record_function``) on the device's line. They are no work; a torch that
    does not mark them (``is_user_annotation``) is read as having seen nothing.
    """
    return [
        (event.name, (event.time_range.start, event.time_range.end))
        for event in events
        if event.device_type.name == "CUDA" and event.device_index == device
        if not getattr(event, "is_user_annotation", True)
    ]


def _kind(name: str) -> str:
    if name.startswith(_COPIES):
        return "copy_ns"
    return "collective_ns" if name.startswith(_COLLECTIVES) else "kernel_ns"


def _length(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals."""
    total, last = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total

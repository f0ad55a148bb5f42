"""Account of a step's time in each trial: user, kernel, waiting for a CPU, blocked; and the events counted meanwhile.

New records account for the thread that runs the steps: its four parts add up to the step time exactly. Older records
account for the whole process: each part is then the mean over the CPUs that the process may use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from envmatrix.evidence.trial_record import Record, StepThread
from envmatrix.stats.array_types import Floats
from envmatrix.stats.metrics import finite_or_nan

#: The parts of a step in the order of the report, with their labels.
PARTS = {"kernel": "Linux kernel", "user": "user", "waiting": "waiting for a CPU", "blocked": "blocked"}
#: Events of the thread (or process) that explain the parts; those of the processor are counted for threads only.
_OF_BOTH = ("minor_faults", "major_faults", "voluntary_switches", "involuntary_switches")
EVENTS = (*_OF_BOTH, "dtlb_misses", "cache_misses")
#: Events whose cost is measured in the trial, with the record's field for it (nanoseconds).
PRICES = {"minor_faults": "minor_fault_ns", "voluntary_switches": "wake_up_ns", "memory_calls": "memory_call_ns"}
#: By how many seconds the first half of the timed steps took longer than the second half.
FIRST_HALF = "first_half_extra_s"
_TIMES = ("user", "kernel", "waiting")
_OTHERS = "others_cpu"
#: Columns of ``Measurements.table``: totals over the timed steps; memory calls are per step of the profiled pass.
COLUMNS = (
    *(f"thread.{name}" for name in (*_TIMES, *EVENTS, _OTHERS)),
    *(f"price.{name}" for name in PRICES),
    "thread.cpus",
    "profiled.memory_calls",
)
_UNKNOWN = [math.nan] * (len(COLUMNS) - 2)
#: Parts may exceed the whole by this fraction, because clocks are not read at the same instant.
_BELOW = 0.05


def row(record: Record) -> list[float]:
    """Return a trial's numbers in the order of COLUMNS, NaN if the record has none or they are impossible."""
    thread = record.step_thread
    known = _UNKNOWN if thread is None else _thread_row(thread)
    return [*known, _cpus(record), _memory_calls(record)]


def _thread_row(thread: StepThread) -> list[float]:
    cpu, user, system = (finite_or_nan(value) / 1e9 for value in (thread.cpu_ns, thread.user_ns, thread.system_ns))
    ticks = user + system
    kernel = cpu * system / ticks if ticks > 0 else math.nan
    waited = finite_or_nan(thread.waited_ns) / 1e9
    events = [finite_or_nan(getattr(thread, name)) for name in EVENTS]
    others = finite_or_nan(thread.others.cpu_ns if thread.others else None) / 1e9
    row = [cpu - kernel, kernel, waited, *events, others]
    if any(value < 0 for value in row):  # a counter overflowed, or a kernel counts differently
        row = [math.nan] * len(row)
    prices = [finite_or_nan(getattr(thread.prices, name, None)) / 1e9 for name in PRICES.values()]
    return [*row, *prices]


def _memory_calls(record: Record) -> float:
    """Return the system calls of memory per profiled step."""
    profile = record.profile
    if profile is None or not profile.memory_calls:
        return math.nan
    calls, steps = finite_or_nan(sum(profile.memory_calls.values())), finite_or_nan(profile.steps)
    return calls / steps if calls >= 0 and steps > 0 else math.nan


def _cpus(record: Record) -> float:
    cpu = record.evidence and record.evidence.cpu
    return float(len(cpu.affinity_before)) if cpu and cpu.affinity_before else math.nan


def of_thread(table: Mapping[str, Floats], rows: list[int]) -> bool:
    """Return whether the trials of these arms account for a thread, not only for their process."""
    known = np.isfinite(table["thread.user"][rows])
    ran = np.isfinite(table["counted_s"][rows])
    return bool(known.any() and (known | ~ran).mean() > 0.5)  # some trials may be older, or unreadable


def account_and_prices(
    table: Mapping[str, Floats], rows: list[int], *, thread: bool
) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
    """Return arrays (rows, blocks) per step (or run, without steps) of ``whole``, PARTS and EVENTS, and of PRICES.

    ``table`` is that of ``Measurements``, ``rows`` are its arms.

    A part is the mean over ``cpus``, which is 1 for a thread. ``waiting`` is NaN if the kernel does not count it; it is
    then part of ``blocked``.
    """
    table = {name: values[rows] for name, values in table.items()}
    steps = np.where(np.isfinite(table["steps"]), table["steps"], 1.0)
    whole = table["counted_s"] / steps
    if thread:
        found = {name: table[f"thread.{name}"] / steps for name in (*_TIMES, *EVENTS, _OTHERS)}
    else:
        each = steps * table["thread.cpus"]
        found = {name: table[column] / each for name, column in _OF_PROCESS.items()}
        found |= {name: table[name] / steps if name in _OF_BOTH else np.full_like(whole, np.nan) for name in EVENTS}
    found["cpus"] = np.ones_like(whole) if thread else table["thread.cpus"]
    found |= {name: table[name] / steps for name in ("throttled_s", FIRST_HALF)}
    found["memory_calls"] = table["profiled.memory_calls"]
    blocked = whole - found["user"] - found["kernel"] - np.nan_to_num(found["waiting"])
    blocked = np.where(blocked < -_BELOW * whole, np.nan, blocked)  # exceeds the whole: not of one thread
    account = {"whole": np.where(np.isfinite(blocked), whole, np.nan), **found, "blocked": blocked}
    return account, {name: table[f"price.{name}"] for name in PRICES}


_OF_PROCESS = {"user": "user_s", "kernel": "system_s", "waiting": "run_delay_s"}

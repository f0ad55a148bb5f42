"""The timed loop, used by all kinds of steps on all devices: clocks, warm-up and timed windows."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bench import counters, step_thread
from bench.cold import turn_start
from bench.gate import Gate, Turn
from bench.place import Place
from bench.record import finite
from bench.steps import Step
from bench.tensors import Batch

#: A steady-state run lasts at most LONGEST times its seconds. It is extended while it has fewer than ENOUGH steps, or
#: while the medians of the last two quarters differ by more than _SAME.
LONGEST, ENOUGH, _SAME = 3, 60, 0.03


@dataclass(frozen=True)
class Length:
    """How many steps of each kind: ``checked`` ones keep their losses, ``epoch`` is timed steps per epoch (0: none).

    A steady-state run (``look_s`` seconds or longer, otherwise None) times every step except one for compiling.
    """

    checked: int
    warm_up: int
    timed: int
    epoch: int
    compiles: bool = False
    look_s: float | None = None

    @property
    def untimed(self) -> int:
        """Steps before the timed ones; with torch.compile at least one, which compiles."""
        return max(self.checked + self.warm_up, int(self.compiles))

    def look(self, seconds: float) -> Length:
        """Return the length of a steady-state run of the same work."""
        return Length(checked=0, warm_up=0, timed=0, epoch=self.epoch, compiles=self.compiles, look_s=seconds)


@dataclass(frozen=True)
class Taken:
    """A turn: nanoseconds of the steps set apart, and the number of counted steps after them."""

    apart_ns: Sequence[int]
    steps: int


@dataclass(frozen=True)
class _Stretch:
    """A stretch of consecutive timed steps."""

    waits_ns: Sequence[int]
    steps_ns: Sequence[int]
    total_ns: int
    samples: int
    counted: Mapping[str, float | None]
    thread: dict[str, Any] | None


@dataclass(frozen=True)
class Timed:
    """The loop's result in nanoseconds; ``waits_ns`` is the part of each step that waited for its batch.

    ``total_ns`` is from the start of the first timed step to the end of all work; in an interleaved run, the sum over
    the counted steps of all turns. ``turns`` is None for uninterrupted runs, and ``turn_start`` comes from
    ``bench.cold``. Undefined values are None.
    """

    steps_ns: Sequence[int]
    waits_ns: Sequence[int]
    epochs_ns: Sequence[int]
    total_ns: int
    samples: int
    compile_ns: int | None
    first_step_ns: int | None
    warmup_ns: int
    losses: Sequence[float]
    last_loss: float | None
    counted: dict[str, float | None]
    turns: Sequence[Taken] | None = None
    turn_start: float | None = None
    thread: dict[str, Any] | None = None

    @property
    def working_ns(self) -> list[int]:
        """Each step without the wait for its batch."""
        return [step - wait for step, wait in zip(self.steps_ns, self.waits_ns)]


class Loop:
    """Yields batches and times the work on them: ``for batch in loop: loop.done(step(batch))``.

    The caller runs one step per batch, and calls ``done`` when the step is submitted to the device.
    """

    def __init__(self, source: Iterator[Batch], place: Place, length: Length, gate: Gate | None = None) -> None:
        self.length = length
        self._source = source
        self._place = place
        self._device = place.device
        self._gate = gate
        self._untimed_ns: list[int] = []
        self._losses: list[Tensor] = []
        self._loss: Tensor | None = None
        self._stretches: list[_Stretch] = []
        self._turns: list[Taken] = []
        self._samples = 0
        self._is_timed = False
        self.goes_on_s: float | None = None

    @property
    def steps(self) -> int:
        """The number of steps that the loop yields batches for, without those set apart in turns."""
        return self.length.untimed + self.length.timed

    def __iter__(self) -> Iterator[Batch]:
        if self._gate is not None:
            yield from self._in_turns(self._gate)
            return
        yield from self._warm_up(self.length.untimed)
        gc.collect()
        look_s = self.length.look_s
        yield from self._window(range(self.length.timed) if look_s is None else _long_enough(look_s))

    def _warm_up(self, steps: int) -> Iterator[Batch]:
        """Yield the batches of the next ``steps`` untimed steps."""
        for number in range(len(self._untimed_ns), len(self._untimed_ns) + steps):
            start = time.perf_counter_ns()
            yield next(self._source)
            self._device.wait()
            self._untimed_ns.append(time.perf_counter_ns() - start)
            if number < self.length.checked and self._loss is not None:
                self._losses.append(self._loss)

    def _in_turns(self, gate: Gate) -> Iterator[Batch]:
        """Yield the batches of turn after turn; the first steps of each find another process's data in the caches.

        Only the first untimed step, which sets up and compiles, runs next to other processes. If all processes warmed
        up at once, their threads would mostly wait for each other.
        """
        yield from self._warm_up(min(1, self.length.untimed))
        gc.collect()
        remaining = self.length.timed
        while remaining:
            turn: Turn = gate.turn(remaining)
            yield from self._warm_up(self.length.untimed - len(self._untimed_ns))
            yield from self._turn(turn)
            remaining -= turn.counted

    def _turn(self, turn: Turn) -> Iterator[Batch]:
        apart: Sequence[int] = ()
        if turn.apart:
            yield from self._window(range(turn.apart))
            apart = self._closed().steps_ns
        yield from self._window(range(turn.counted))
        self._stretches.append(self._closed())
        self._turns.append(Taken(apart, turn.counted))

    def _window(self, steps: Iterable[int]) -> Iterator[Batch]:
        """Yield a batch for each of ``steps``, as one timed stretch that all processes start together."""
        source, mark = self._source, self._device.mark
        self._place.barrier()
        self._samples = 0
        self._before, self._thread = counters.read(), step_thread.attempt_read()
        self._is_timed = True
        self._device.begin()
        for _ in steps:
            batch = next(source)
            mark()
            self._samples += batch.total
            yield batch

    def _closed(self) -> _Stretch:
        """Wait for all work since the last ``begin``, and return it as a stretch."""
        parts_ns = self._device.durations_ns()
        thread = step_thread.since(self._thread) if self._thread else None
        counted = counters.since(self._before)
        waits_ns = parts_ns[0::2]
        steps_ns = [wait + work for wait, work in zip(waits_ns, parts_ns[1::2])]
        return _Stretch(waits_ns, steps_ns, self._device.total_ns(), self._samples, counted, thread)

    def done(self, loss: Tensor | None) -> None:
        """Note that the step is submitted to the device."""
        self._loss = loss
        if self._is_timed:
            self._device.mark()

    def end(self) -> Timed:
        """Stop the clock when all work is complete; return the measurements."""
        if self._gate is None:
            self._stretches.append(self._closed())
        counted = dict(_sum_counters(self._stretches), peak_rss_bytes=counters.peak_rss_bytes())
        peak_gpu_bytes = self._device.peak_bytes()
        if self._gate is not None:
            self.goes_on_s = self._gate.end()
        steps_ns = [step_ns for stretch in self._stretches for step_ns in stretch.steps_ns]
        compile_ns, first_ns, warmup_ns = self._untimed()
        last_loss = [] if self._loss is None else [self._loss]
        return Timed(
            steps_ns=steps_ns,
            waits_ns=[wait for stretch in self._stretches for wait in stretch.waits_ns],
            # Some steps of each turn are set apart, so no epoch is complete.
            epochs_ns=_epochs(steps_ns, self.length.epoch) if self._gate is None else [],
            total_ns=sum(stretch.total_ns for stretch in self._stretches),
            samples=sum(stretch.samples for stretch in self._stretches),
            compile_ns=compile_ns,
            first_step_ns=first_ns,
            warmup_ns=warmup_ns,
            losses=self._place.means(self._losses),
            last_loss=finite(next(iter(self._place.means(last_loss)), None)),
            counted=dict(counted, peak_gpu_bytes=peak_gpu_bytes),
            turns=None if self._gate is None else self._turns,
            turn_start=None if self._gate is None else turn_start(self._parts()),
            thread=step_thread.sum_intervals([stretch.thread for stretch in self._stretches]),
        )

    @property
    def ran_ns(self) -> int:
        """The time of all steps so far, except the first one, which runs next to other processes."""
        apart_ns = sum(sum(turn.apart_ns) for turn in self._turns)
        return sum(self._untimed_ns[1:]) + apart_ns + sum(stretch.total_ns for stretch in self._stretches)

    def _parts(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Return each turn's step times as (set apart, counted)."""
        return [(turn.apart_ns, stretch.steps_ns) for turn, stretch in zip(self._turns, self._stretches)]

    def _untimed(self) -> tuple[int | None, int | None, int]:
        """Return nanoseconds of compiling, of the first step that did not compile, and of the warm-up."""
        untimed, checked = self._untimed_ns, self.length.checked
        compiling = int(self.length.compiles)
        first_step = untimed[compiling] if len(untimed) > compiling else None
        # torch_xla reports its own compile time, which includes later compilations.
        compile_ns = self._device.compile_ns()
        if compile_ns is None and compiling:
            compile_ns = untimed[0]
        return compile_ns, first_step, sum(untimed[max(checked, compiling) :])


def drive(step: Step, loop: Loop) -> None:
    """Run a step for every batch of the loop."""
    for batch in loop:
        loop.done(step(batch))


def _long_enough(seconds: float) -> Iterator[int]:
    """Count the steps of a steady-state run: for ``seconds``, and longer while they are few or not steady."""
    began = last_ns = time.perf_counter_ns()
    step_times: list[int] = []
    while last_ns - began < 1e9 * seconds or (
        last_ns - began < 1e9 * LONGEST * seconds and not _looks_steady(step_times)
    ):
        yield len(step_times)
        now_ns = time.perf_counter_ns()
        step_times.append(now_ns - last_ns)
        last_ns = now_ns


def _looks_steady(steps_ns: Sequence[int]) -> bool:
    """Return whether the last two quarters of the steps take equally long; the later analysis uses all steps."""
    quarter = len(steps_ns) // 4
    if len(steps_ns) < ENOUGH:
        return False
    earlier, later = (statistics.median(part) for part in (steps_ns[-2 * quarter : -quarter], steps_ns[-quarter:]))
    return abs(later - earlier) <= _SAME * earlier


def _sum_counters(stretches: Sequence[_Stretch]) -> dict[str, float | None]:
    """Return the counters summed over all stretches; None if any of them could not be read."""
    sums: dict[str, float | None] = {}
    for name in stretches[0].counted:
        parts = [stretch.counted[name] for stretch in stretches]
        known_parts = [part for part in parts if part is not None]
        sums[name] = sum(known_parts) if len(known_parts) == len(parts) else None
    return sums


def _epochs(steps_ns: Sequence[int], epoch: int) -> list[int]:
    """Return the nanoseconds of each complete epoch."""
    if not epoch:
        return []
    return [sum(steps_ns[first : first + epoch]) for first in range(0, len(steps_ns) - epoch + 1, epoch)]


def percentile(samples: Sequence[float], share: float) -> float | None:
    """Return the smallest sample that at least ``share`` (0 to 1) of all samples do not exceed, or None."""
    if not samples:
        return None
    ordered = sorted(samples)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]

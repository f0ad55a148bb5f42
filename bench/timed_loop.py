"""The timed loop, used by all kinds of steps on all devices: clocks, warm-up and timed windows."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bench import process_resource_usage, step_thread_account
from bench.dataset_tensors import Batch
from bench.early_and_late_steps import first_to_last_step_ratio, second_half
from bench.gate import Gate, Turn
from bench.rank_and_device import Place
from bench.record import finite
from bench.steps import Step

#: A steady-state run lasts at most LONGEST times its seconds. It is extended while it has fewer than ENOUGH steps, or
#: while the medians of the last two quarters differ by more than _SAME.
LONGEST, ENOUGH, _SAME = 3, 60, 0.03
#: The last stretch may be this share of the time too short: a further stretch of a few steps would tell nothing.
_REST = 0.05


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

    def steady_state_length(self, seconds: float) -> Length:
        """Return the length of a steady-state run of the same work."""
        return Length(checked=0, warm_up=0, timed=0, epoch=self.epoch, compiles=self.compiles, look_s=seconds)


@dataclass(frozen=True)
class _Stretch:
    """A stretch of consecutive timed steps, after ``apart_ns`` of steps set apart at the start of a turn."""

    apart_ns: Sequence[int]
    waits_ns: Sequence[int]
    steps_ns: Sequence[int]
    total_ns: int
    samples: int
    counted: dict[str, Any]
    thread: dict[str, Any] | None


@dataclass(frozen=True)
class Timed:
    """The loop's result. ``times`` are its part of the record's ``timing``; undefined values are None.

    ``training_ns`` in it is from the start of the first timed step to the end of all work; in an interleaved run, the
    sum over the counted steps of all turns. ``turns`` is None for uninterrupted runs. ``waits_ns`` is the part of each
    step that waited for its batch, and ``turn_start`` comes from ``bench.early_and_late_steps``.
    """

    times: dict[str, Any]
    waits_ns: Sequence[int]
    samples: int
    losses: Sequence[float]
    last_loss: float | None
    counted: dict[str, Any]
    turn_start: float | None
    thread: dict[str, Any] | None

    @property
    def steps_ns(self) -> list[int]:
        """The time of each step."""
        return self.times["steps_ns"]

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
        self._stretches.append(self._closed(apart))

    def _window(self, steps: Iterable[int]) -> Iterator[Batch]:
        """Yield a batch for each of ``steps``, as one timed stretch that all processes start together."""
        source, mark = self._source, self._device.mark
        self._place.barrier()
        self._samples = 0
        self._before, self._thread = process_resource_usage.read(), step_thread_account.attempt_read()
        self._is_timed = True
        self._device.begin()
        for _ in steps:
            batch = next(source)
            mark()
            self._samples += batch.total
            yield batch

    def _closed(self, apart_ns: Sequence[int] = ()) -> _Stretch:
        """Wait for all work since the last ``begin``, and return it as a stretch."""
        parts_ns = self._device.durations_ns()
        thread = step_thread_account.since(self._thread) if self._thread else None
        counted = process_resource_usage.since(self._before)
        waits_ns = parts_ns[0::2]
        steps_ns = [wait + work for wait, work in zip(waits_ns, parts_ns[1::2])]
        return _Stretch(apart_ns, waits_ns, steps_ns, self._device.begin_to_end_ns(), self._samples, counted, thread)

    def done(self, loss: Tensor | None) -> None:
        """Note that the step is submitted to the device."""
        self._loss = loss
        if self._is_timed:
            self._device.mark()

    def end(self) -> Timed:
        """Stop the clock when all work is complete; return the measurements."""
        if self._gate is None:
            self._stretches.append(self._closed())
        counted = step_thread_account.sum_intervals([stretch.counted for stretch in self._stretches]) or {}
        counted |= {
            "peak_rss_bytes": process_resource_usage.peak_rss_bytes(),
            "peak_gpu_bytes": self._device.peak_bytes(),
        }
        takes_turns, parts = self._gate is not None, self._parts()
        if self._gate is not None:
            self.goes_on_s = self._gate.wait_for_extra_seconds()
        steps_ns = [step_ns for stretch in self._stretches for step_ns in stretch.steps_ns]
        waits_ns = [wait for stretch in self._stretches for wait in stretch.waits_ns]
        turns = [{"apart_ns": list(apart), "steps": len(counted_steps)} for apart, counted_steps in parts]
        last_loss = [] if self._loss is None else [self._loss]
        return Timed(
            times={
                **self._untimed(),
                "steps_ns": steps_ns,
                # Some steps of each turn are set apart, so no epoch is complete.
                "epochs_ns": [] if takes_turns else _epochs(steps_ns, self.length.epoch),
                "data_wait_ns": sum(waits_ns),
                "training_ns": sum(stretch.total_ns for stretch in self._stretches),
                "turns": turns if takes_turns else None,
            },
            waits_ns=waits_ns,
            samples=sum(stretch.samples for stretch in self._stretches),
            losses=self._place.means(self._losses),
            last_loss=finite(next(iter(self._place.means(last_loss)), None)),
            counted=counted,
            turn_start=first_to_last_step_ratio(parts) if takes_turns else None,
            thread=step_thread_account.sum_intervals([stretch.thread for stretch in self._stretches]),
        )

    @property
    def ran_ns(self) -> int:
        """The time of all steps so far, except the first one, which runs next to other processes."""
        return sum(self._untimed_ns[1:]) + sum(sum(stretch.apart_ns) + stretch.total_ns for stretch in self._stretches)

    def _parts(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Return each turn's step times as (set apart, counted)."""
        return [(stretch.apart_ns, stretch.steps_ns) for stretch in self._stretches]

    def _untimed(self) -> dict[str, int | None]:
        """Return the times of compiling, of the warm-up, and of the first step that did not compile."""
        untimed, compiling = self._untimed_ns, int(self.length.compiles)
        # torch_xla reports its own compile time, which includes later compilations.
        compile_ns = self._device.compile_ns()
        return {
            "compile_ns": untimed[0] if compile_ns is None and compiling else compile_ns,
            "warmup_ns": sum(untimed[max(self.length.checked, compiling) :]),
            "first_step_ns": untimed[compiling] if len(untimed) > compiling else None,
        }


class LaterSteps(Loop):
    """The steps of a process that goes on after its trial (docs/record.md): for ``seconds``, after steps of ``ran_ns``.

    ``step_ns`` is the mean time of a step of the trial. The length of each stretch comes from the gate.
    """

    def __init__(
        self, source: Iterator[Batch], place: Place, gate: Gate, seconds: float, ran_ns: int, step_ns: float
    ) -> None:
        super().__init__(source, place, Length(checked=0, warm_up=0, timed=0, epoch=0), gate)
        self._stop_line, self._after_ns, self._length_ns = gate, ran_ns, round(1e9 * seconds)
        self._step_ns = self._trial_step_ns = step_ns

    def __iter__(self) -> Iterator[Batch]:
        while steps_left := self._steps_left():
            yield from self._turn(self._stop_line.turn(steps_left))
            stretch = self._stretches[-1]
            self._step_ns = stretch.total_ns / len(stretch.steps_ns)
        self._stop_line.wait_for_extra_seconds()

    def _steps_left(self) -> int:
        """Return how many steps remain if they are as fast as those of the last stretch."""
        left_ns = self._length_ns - self.ran_ns
        return -int(-left_ns // self._step_ns) if left_ns > _REST * self._length_ns else 0

    def times(self) -> dict[str, Any]:
        """Return the times of all its steps, and of those before them, in the record's form."""
        stretches = [{"apart_ns": list(apart), "counted_ns": list(counted)} for apart, counted in self._parts()]
        means = second_half(self._parts(), self._trial_step_ns, self._after_ns)
        return {**means, "after_ns": self._after_ns, "stretches": stretches}


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

"""The one timed loop: it alone knows clocks, warm-up and windows, for every kind of step at every place."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from bench import counters
from bench.cold import turn_start
from bench.gate import Gate, Turn
from bench.place import Place
from bench.record import finite
from bench.steps import Step
from bench.tensors import Batch

#: A long look goes on for so many times its seconds at most while its steps are fewer than ENOUGH or not steady yet,
#: which they are where the medians of the last two quarters differ by no more than _SAME.
LONGEST, ENOUGH, _SAME = 3, 60, 0.03


@dataclass(frozen=True)
class Length:
    """How many steps of each kind: ``checked`` ones keep their losses, ``epoch`` is timed steps per pass (0: none).

    A long look (``look_s``, None: it is none) times every step but the one that compiles, for so many seconds at least.
    """

    checked: int
    warm_up: int
    timed: int
    epoch: int
    compiles: bool = False
    look_s: float | None = None

    @property
    def untimed(self) -> int:
        """Steps before the timed ones; with torch.compile there is at least one, which compiles."""
        return max(self.checked + self.warm_up, int(self.compiles))

    def look(self, seconds: float) -> Length:
        """Return the length of a long look at the same work."""
        return Length(checked=0, warm_up=0, timed=0, epoch=self.epoch, compiles=self.compiles, look_s=seconds)


@dataclass(frozen=True)
class Taken:
    """A turn: nanoseconds of the steps that are set apart, and how many counted ones followed."""

    apart_ns: Sequence[int]
    steps: int


@dataclass(frozen=True)
class _Stretch:
    """Steps that were taken one right after the other."""

    waits_ns: Sequence[int]
    steps_ns: Sequence[int]
    total_ns: int
    samples: int
    counted: Mapping[str, float | None]


@dataclass(frozen=True)
class Timed:
    """What the loop yields; nanoseconds, ``waits_ns`` is the part of each step that waited for its batch.

    ``total_ns`` is from the start of the first timed step to the end of all work; in turns, of each turn's counted
    steps, summed. ``turns`` is None where the steps were taken in one go, ``turn_start`` is that of ``cold``.
    Undefined is None.
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

    @property
    def working_ns(self) -> list[int]:
        """Each step without the wait for its batch."""
        return [step - wait for step, wait in zip(self.steps_ns, self.waits_ns)]


class Loop:
    """Gives batches and times what is done with them: ``for batch in loop: loop.done(step(batch))``.

    Whoever drives it takes one step per batch and says when that step is given to the device.
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

    @property
    def steps(self) -> int:
        """All steps that the loop gives batches for, but for those that turns set apart."""
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
        """Give the batches of the next ``steps`` untimed steps."""
        for number in range(len(self._untimed_ns), len(self._untimed_ns) + steps):
            start = time.perf_counter_ns()
            yield next(self._source)
            self._device.wait()
            self._untimed_ns.append(time.perf_counter_ns() - start)
            if number < self.length.checked and self._loss is not None:
                self._losses.append(self._loss)

    def _in_turns(self, gate: Gate) -> Iterator[Batch]:
        """Give the batches of turn after turn; the first steps of each find another process's data in the caches.

        Only the first untimed step, which sets up and compiles, is taken beside other processes: where all of them
        warm up at once, their threads wait for one another most of the time.
        """
        yield from self._warm_up(min(1, self.length.untimed))
        gc.collect()
        remaining = self.length.timed
        while remaining:
            turn: Turn = gate.turn(remaining)
            yield from self._warm_up(self.length.untimed - len(self._untimed_ns))
            apart: Sequence[int] = ()
            if turn.apart:
                yield from self._window(range(turn.apart))
                apart = self._closed().steps_ns
            yield from self._window(range(turn.counted))
            self._stretches.append(self._closed())
            self._turns.append(Taken(apart, turn.counted))
            remaining -= turn.counted

    def _window(self, steps: Iterable[int]) -> Iterator[Batch]:
        """Give a batch for each of ``steps``, one timed stretch, which all processes start together."""
        source, mark = self._source, self._device.mark
        self._place.barrier()
        self._samples = 0
        self._before = counters.read()
        self._is_timed = True
        self._device.begin()
        for _ in steps:
            batch = next(source)
            mark()
            self._samples += batch.total
            yield batch

    def _closed(self) -> _Stretch:
        """Return the stretch that was taken since the last ``begin``, once all its work is over."""
        parts_ns = self._device.durations_ns()
        counted = counters.since(self._before)
        waits_ns = parts_ns[0::2]
        steps_ns = [wait + work for wait, work in zip(waits_ns, parts_ns[1::2])]
        return _Stretch(waits_ns, steps_ns, self._device.total_ns(), self._samples, counted)

    def done(self, loss: Tensor | None) -> None:
        """Note that the step is given to the device."""
        self._loss = loss
        if self._is_timed:
            self._device.mark()

    def end(self) -> Timed:
        """Stop the clock once all work is over; return what was taken."""
        if self._gate is None:
            self._stretches.append(self._closed())
        counted = dict(_summed(self._stretches), peak_rss_bytes=counters.peak_rss_bytes())
        peak_gpu_bytes = self._device.peak_bytes()
        if self._gate is not None:
            self._gate.end()
        steps_ns = [step_ns for stretch in self._stretches for step_ns in stretch.steps_ns]
        compile_ns, first_ns, warmup_ns = self._untimed()
        last_loss = [] if self._loss is None else [self._loss]
        return Timed(
            steps_ns=steps_ns,
            waits_ns=[wait for stretch in self._stretches for wait in stretch.waits_ns],
            # What turns set apart lies between: no pass over the data is whole.
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
        )

    def _parts(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Return the steps of each turn: those that are set apart, and those that count."""
        return [(turn.apart_ns, stretch.steps_ns) for turn, stretch in zip(self._turns, self._stretches)]

    def _untimed(self) -> tuple[int | None, int | None, int]:
        """Return nanoseconds of compiling, of the first step that did not compile, and of the warm-up."""
        untimed, checked = self._untimed_ns, self.length.checked
        compiling = int(self.length.compiles)
        first_step = untimed[compiling] if len(untimed) > compiling else None
        # What is compiled by torch_xla is told by its own report, also what it compiled later.
        compile_ns = self._device.compile_ns()
        if compile_ns is None and compiling:
            compile_ns = untimed[0]
        return compile_ns, first_step, sum(untimed[max(checked, compiling) :])


def drive(step: Step, loop: Loop) -> None:
    """Take a step for every batch of the loop."""
    for batch in loop:
        loop.done(step(batch))


def _long_enough(seconds: float) -> Iterator[int]:
    """Count the steps of a long look: ``seconds`` of them, and more while they are few or do not look steady yet."""
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
    """Whether the last two quarters of the steps take the same; what they really are is judged from all of them."""
    quarter = len(steps_ns) // 4
    if len(steps_ns) < ENOUGH:
        return False
    earlier, later = (statistics.median(part) for part in (steps_ns[-2 * quarter : -quarter], steps_ns[-quarter:]))
    return abs(later - earlier) <= _SAME * earlier


def _summed(stretches: Sequence[_Stretch]) -> dict[str, float | None]:
    """Return the counters of all stretches; None where one of them could not be read."""
    sums: dict[str, float | None] = {}
    for name in stretches[0].counted:
        parts = [stretch.counted[name] for stretch in stretches]
        known_parts = [part for part in parts if part is not None]
        sums[name] = sum(known_parts) if len(known_parts) == len(parts) else None
    return sums


def _epochs(steps_ns: Sequence[int], epoch: int) -> list[int]:
    """Return the nanoseconds of each whole epoch."""
    if not epoch:
        return []
    return [sum(steps_ns[first : first + epoch]) for first in range(0, len(steps_ns) - epoch + 1, epoch)]


def percentile(samples: Sequence[float], share: float) -> float | None:
    """Return the smallest sample that at least ``share`` (0 to 1) of all samples do not exceed, or None."""
    if not samples:
        return None
    ordered = sorted(samples)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]

"""The one timed loop: it alone knows clocks, warm-up and windows, for every kind of step at every place."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from bench import counters
from bench.place import Place
from bench.record import finite
from bench.steps import Step
from bench.tensors import Batch


@dataclass(frozen=True)
class Length:
    """How many steps of each kind: ``checked`` ones keep their losses, ``epoch`` is timed steps per pass (0: none)."""

    checked: int
    warm_up: int
    timed: int
    epoch: int
    compiles: bool = False

    @property
    def untimed(self) -> int:
        """Steps before the timed ones; with torch.compile there is at least one, which compiles."""
        return max(self.checked + self.warm_up, int(self.compiles))


@dataclass(frozen=True)
class Timed:
    """What the loop yields; nanoseconds, ``waits_ns`` is the part of each step that waited for its batch.

    ``total_ns`` is from the start of the first timed step to the end of all work. Undefined is None.
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

    @property
    def working_ns(self) -> list[int]:
        """Each step without the wait for its batch."""
        return [step - wait for step, wait in zip(self.steps_ns, self.waits_ns)]


class Loop:
    """Gives batches and times what is done with them: ``for batch in loop: loop.done(step(batch))``.

    Whoever drives it takes one step per batch and says when that step is given to the device.
    """

    def __init__(self, source: Iterator[Batch], place: Place, length: Length) -> None:
        self.length = length
        self._source = source
        self._place = place
        self._device = place.device
        self._untimed_ns: list[int] = []
        self._losses: list[Tensor] = []
        self._loss: Tensor | None = None
        self._samples = 0
        self._is_timed = False

    @property
    def steps(self) -> int:
        """All steps that the loop gives batches for."""
        return self.length.untimed + self.length.timed

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.length.untimed):
            start = time.perf_counter_ns()
            yield next(self._source)
            self._device.wait()
            self._untimed_ns.append(time.perf_counter_ns() - start)
            if number < self.length.checked and self._loss is not None:
                self._losses.append(self._loss)
        yield from self._window(self.length.timed)

    def _window(self, steps: int) -> Iterator[Batch]:
        """Give the batches of one timed stretch, which all processes start together."""
        source, mark = self._source, self._device.mark
        gc.collect()
        self._place.barrier()
        self._before = counters.read()
        self._is_timed = True
        self._device.begin()
        for _ in range(steps):
            batch = next(source)
            mark()
            self._samples += batch.total
            yield batch

    def done(self, loss: Tensor | None) -> None:
        """Note that the step is given to the device."""
        self._loss = loss
        if self._is_timed:
            self._device.mark()

    def end(self) -> Timed:
        """Stop the clock once all work is over; return what was taken."""
        parts_ns = self._device.durations_ns()
        counted = dict(counters.since(self._before), peak_rss_bytes=counters.peak_rss_bytes())
        waits_ns = parts_ns[0::2]
        steps_ns = [wait + work for wait, work in zip(waits_ns, parts_ns[1::2])]
        compile_ns, first_ns, warmup_ns = self._untimed()
        last = [] if self._loss is None else [self._loss]
        return Timed(
            steps_ns=steps_ns,
            waits_ns=waits_ns,
            epochs_ns=_epochs(steps_ns, self.length.epoch),
            total_ns=self._device.total_ns(),
            samples=self._samples,
            compile_ns=compile_ns,
            first_step_ns=first_ns,
            warmup_ns=warmup_ns,
            losses=self._place.means(self._losses),
            last_loss=finite(next(iter(self._place.means(last)), None)),
            counted=dict(counted, peak_gpu_bytes=self._device.peak_bytes()),
        )

    def _untimed(self) -> tuple[int | None, int | None, int]:
        """Return nanoseconds of compiling, of the first step that did not compile, and of the warm-up."""
        taken, checked = self._untimed_ns, self.length.checked
        compiling = int(self.length.compiles)
        first = taken[compiling] if len(taken) > compiling else None
        # What is compiled by torch_xla is told by its own report, also what it compiled later.
        compile_ns = self._device.compile_ns()
        if compile_ns is None and compiling:
            compile_ns = taken[0]
        return compile_ns, first, sum(taken[max(checked, compiling) :])


def drive(step: Step, loop: Loop) -> None:
    """Take a step for every batch of the loop."""
    for batch in loop:
        loop.done(step(batch))


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

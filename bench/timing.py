"""How samples of time are taken: the same loop for every task."""

import time

from bench.record import finite


class Timed:
    """What the timed part yields; times in nanoseconds, ``waits_ns`` is each step's wait for its batch."""

    def __init__(self):
        self.steps_ns = []
        self.waits_ns = []
        self.epochs_ns = []
        self.total_ns = 0
        self.samples = 0
        self.last_loss = None


def warm_up(step, source, steps):
    """Take untimed steps, so that lazy set-up is over; return (all, the first one) in nanoseconds."""
    start = time.perf_counter_ns()
    first = None
    for _ in range(steps):
        step(*next(source))
        if first is None:
            first = time.perf_counter_ns() - start
    return time.perf_counter_ns() - start, first


def take(step, source, steps, epoch_steps):
    """Take ``steps`` timed steps; one whole ``epoch_steps`` of them is one entry of ``epochs_ns``."""
    timed = Timed()
    now = time.perf_counter_ns
    epoch_start = start = before = now()
    loss = None
    for number in range(1, steps + 1):
        images, labels = next(source)
        fetched = now()
        loss = step(images, labels)
        timed.samples += len(labels)
        after = now()
        timed.steps_ns.append(after - before)
        timed.waits_ns.append(fetched - before)
        if number % epoch_steps == 0:
            timed.epochs_ns.append(after - epoch_start)
            epoch_start = after
        before = after
    timed.total_ns = before - start
    timed.last_loss = None if loss is None else finite(loss.item())
    return timed


def percentile(samples, share):
    """Return the smallest sample that at least ``share`` (0 to 1) of all samples do not exceed, or None."""
    if not samples:
        return None
    ordered = sorted(samples)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]

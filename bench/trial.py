"""The measured part of a run, for all kinds of work: prepare, run the timed loop, evaluate."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any, Callable, Protocol

from bench import continuation, prices, timing
from bench.cold import first_half_extra_s
from bench.data_sets import Prepared
from bench.gate import Gate
from bench.options import Options
from bench.parallel import choices
from bench.place import Place
from bench.tensors import Batch

#: The times of the record that are also metrics, in seconds.
_SECONDS = ("training", "data_wait")
#: Takes the record's parts and stolen ticks of a trial whose process goes on, to write its record.
Keep = Callable[[dict[str, Any], "int | None"], object]
#: Times that are metrics only if no other process prepared at the same time.
_ALONE = ("startup", "import", "preparation", "compile", "warmup", "first_step")


class Work(Protocol):
    """The work to measure, ready for its first step: a network (``bench.network``) or a collective."""

    length: timing.Length
    source: Iterator[Batch]
    startup_ns: int | None
    preparation_ns: int | None

    def drive(self, loop: timing.Loop) -> None:
        """Run all steps of the loop."""

    def after(self, timed: timing.Timed) -> dict[str, Any]:
        """Return the parts of the record that are specific to this work, and ``model_bytes``."""

    def close(self) -> None:
        """End everything that this work started."""


def measure(
    options: Options,
    prepared: Prepared | None,
    place: Place,
    import_ns: int,
    gate: Gate | None = None,
    look_s: float | None = None,
    keep: Keep = lambda *_: None,
) -> tuple[dict[str, Any], int | None]:
    """Run the workload at its place; return (the record's parts, stolen ticks of the timed part).

    With ``look_s`` it is a steady-state run of that many seconds, timed from the first step. If the process goes on
    after an interleaved trial, ``keep`` receives the trial before that, and ``timing.later`` is added to it.
    """
    choices.check(options)
    work = _prepare_work(options, prepared, place)
    try:
        measured, steal, loop = _measure_work(work, place, import_ns, gate, look_s)
        if loop.goes_on_s is not None and gate is not None:
            keep(measured, steal)
            measured["timing"]["later"] = _go_on(work, place, gate, loop.goes_on_s, loop.ran_ns, measured)
        return measured, steal
    finally:
        work.close()


def _prepare_work(options: Options, prepared: Prepared | None, place: Place) -> Work:
    if prepared is None:
        from bench.parallel.collectives import Communication

        return Communication(options, place)
    from bench.network import Network

    return Network(options, prepared, place)


def _measure_work(
    work: Work, place: Place, import_ns: int, gate: Gate | None, look_s: float | None
) -> tuple[dict[str, Any], int | None, timing.Loop]:
    length = work.length if look_s is None else work.length.look(look_s)
    loop = timing.Loop(work.source, place, length, gate)
    work.drive(loop)
    timed = loop.end()
    times = {
        "startup_ns": work.startup_ns,
        "import_ns": import_ns,
        "preparation_ns": work.preparation_ns,
        "compile_ns": timed.compile_ns,
        "warmup_ns": timed.warmup_ns,
        "first_step_ns": timed.first_step_ns,
        "steps_ns": timed.steps_ns,
        "epochs_ns": timed.epochs_ns,
        "data_wait_ns": sum(timed.waits_ns),
        "training_ns": timed.total_ns,
        "look_s": look_s,
        "turns": None if timed.turns is None else [dataclasses.asdict(turn) for turn in timed.turns],
    }
    result_parts = work.after(timed)
    counted = dict(timed.counted, model_bytes=result_parts.pop("model_bytes"))
    steal = counted.pop("steal_ticks")
    result = dict(_RESULT, **result_parts["result"])
    result.update(training_loss=timed.last_loss, samples=timed.samples, steps=len(timed.steps_ns))
    metrics = dict(_metrics(times, timed, place), **counted)
    thread = timed.thread and dict(timed.thread, steps=len(timed.steps_ns), prices=prices.measure())
    return dict(result_parts, result=result, timing=times, metrics=metrics, step_thread=thread), steal, loop


def _go_on(
    work: Work, place: Place, gate: Gate, seconds: float, ran_ns: int, measured: dict[str, Any]
) -> dict[str, Any]:
    """Run further steps for ``seconds``; return their times."""
    step_ns = statistics.fmean(measured["timing"]["steps_ns"])
    steps = continuation.LaterSteps(work.source, place, gate, seconds, ran_ns, step_ns)
    work.drive(steps)
    return steps.times()


#: Results that a kind of work does not have are null in its record.
_RESULT = dict.fromkeys(
    (
        "loss",
        "accuracy",
        "training_loss",
        "parameters",
        "samples",
        "steps",
        "sparsity",
        "effective_batch",
        "learning_rate",
        "equality",
        "collective",
    )
)


def _metrics(times: dict[str, Any], timed: timing.Timed, place: Place) -> dict[str, float | None]:
    working = timed.working_ns
    # The latency of a step is unknown if its mark is placed on submission.
    shown_steps = working if place.device.tells_steps else []
    latency = {f"latency_p{share}_s": _seconds(timing.percentile(shown_steps, share / 100)) for share in (50, 90, 99)}
    return {
        "samples_per_s": timed.samples / (timed.total_ns / 1e9),
        **{f"{name}_s": _seconds(times[f"{name}_ns"]) for name in _SECONDS},
        **{f"{name}_s": None if timed.turns is not None else _seconds(times[f"{name}_ns"]) for name in _ALONE},
        "compute_s": sum(working) / 1e9,
        "step_median_s": statistics.median(timed.steps_ns) / 1e9,
        "epoch_s": statistics.fmean(timed.epochs_ns) / 1e9 if timed.epochs_ns else None,
        **latency,
        "turn_start": timed.turn_start,
        "first_half_extra_s": first_half_extra_s(timed.steps_ns),
    }


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9

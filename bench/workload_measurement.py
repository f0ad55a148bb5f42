"""The measured part of a run, for all kinds of work: prepare, run the timed loop, evaluate."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Callable

from bench import system_event_costs, timed_loop
from bench.data_sets import Prepared
from bench.early_and_late_steps import first_half_extra_s
from bench.gate import Gate
from bench.options import Options
from bench.parallel import device_and_learning_rate
from bench.rank_and_device import Place

if TYPE_CHECKING:
    from bench.parallel.collective_bandwidth import Communication
    from bench.prepared_model import Network

#: The times of the record that are also metrics, in seconds.
_SECONDS = ("training", "data_wait")
#: Times that are metrics only if no other process prepared at the same time.
_ALONE = ("startup", "import", "preparation", "compile", "warmup", "first_step")


def measure(
    options: Options,
    prepared: Prepared | None,
    place: Place,
    import_ns: int,
    gate: Gate | None = None,
    look_s: float | None = None,
    keep: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Run the workload at its place; return the record's parts, and ``steal_ticks``, stolen in the timed part.

    With ``look_s`` it is a steady-state run of that many seconds, timed from the first step. If the process goes on
    after an interleaved trial, ``keep`` receives the trial before that, and ``timing.later`` is added to it.
    """
    device_and_learning_rate.check_batch_divides(options)
    work = _prepare_work(options, prepared, place)
    try:
        loop = timed_loop.Loop(
            work.source, place, work.length if look_s is None else work.length.steady_state_length(look_s), gate
        )
        measured = _measure_work(work, loop, place, import_ns, look_s)
        if gate is not None and loop.goes_on_s is not None:
            keep(measured)
            step_ns = statistics.fmean(measured["timing"]["steps_ns"])
            later_steps = timed_loop.LaterSteps(work.source, place, gate, loop.goes_on_s, loop.ran_ns, step_ns)
            work.drive(later_steps)
            measured["timing"]["later"] = later_steps.times()
        return measured
    finally:
        work.close()


def _prepare_work(options: Options, prepared: Prepared | None, place: Place) -> Network | Communication:
    """Return the work, ready for its first step."""
    if prepared is None:
        from bench.parallel.collective_bandwidth import Communication

        return Communication(options, place)
    from bench.prepared_model import Network

    return Network(options, prepared, place)


def _measure_work(
    work: Network | Communication, loop: timed_loop.Loop, place: Place, import_ns: int, look_s: float | None
) -> dict[str, Any]:
    work.drive(loop)
    timed = loop.end()
    times = {
        "startup_ns": work.startup_ns,
        "import_ns": import_ns,
        "preparation_ns": work.preparation_ns,
        **timed.times,
        "look_s": look_s,
    }
    result_parts = work.after(timed)
    counted = dict(timed.counted, model_bytes=result_parts.pop("model_bytes"))
    steal_ticks = counted.pop("steal_ticks")
    result = {**dict.fromkeys(_RESULT), **result_parts["result"]}
    result.update(training_loss=timed.last_loss, samples=timed.samples, steps=len(timed.steps_ns))
    metrics = dict(_metrics(times, timed, place), **counted)
    thread = timed.thread and dict(timed.thread, steps=len(timed.steps_ns), prices=system_event_costs.measure())
    return dict(result_parts, result=result, timing=times, metrics=metrics, step_thread=thread, steal_ticks=steal_ticks)


#: Results that a kind of work does not have are null in its record.
_RESULT = (
    "loss", "accuracy", "training_loss", "parameters", "samples", "steps", "sparsity", "effective_batch",
    "learning_rate", "equality", "collective",
)  # fmt: skip


def _metrics(times: dict[str, Any], timed: timed_loop.Timed, place: Place) -> dict[str, float | None]:
    working = timed.working_ns
    # The latency of a step is unknown if its mark is placed on submission.
    shown_steps = working if place.device.tells_steps else []
    latency = {
        f"latency_p{share}_s": _seconds(timed_loop.percentile(shown_steps, share / 100)) for share in (50, 90, 99)
    }
    return {
        "samples_per_s": timed.samples / (times["training_ns"] / 1e9),
        **{f"{name}_s": _seconds(times[f"{name}_ns"]) for name in _SECONDS},
        **{f"{name}_s": None if times["turns"] is not None else _seconds(times[f"{name}_ns"]) for name in _ALONE},
        "compute_s": sum(working) / 1e9,
        "step_median_s": statistics.median(timed.steps_ns) / 1e9,
        "epoch_s": statistics.fmean(times["epochs_ns"]) / 1e9 if times["epochs_ns"] else None,
        **latency,
        "turn_start": timed.turn_start,
        "first_half_extra_s": first_half_extra_s(timed.steps_ns),
    }


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9

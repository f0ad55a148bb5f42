"""One rank's share of a parallel trial: build, check, warm up, time, evaluate."""

import statistics
import time

import torch

from bench import clock, counters, models, record, tensors, training
from bench.errors import RunError
from bench.parallel import choices, collectives, devices, equality, graphed, methods, shards
from bench.parallel.meeting import Place


class Series:
    """The timed steps of one rank; nanoseconds."""

    def __init__(self, steps_ns, epochs_ns, waits_ns, total_ns, samples):
        self.steps_ns = steps_ns
        self.epochs_ns = epochs_ns
        self.waits_ns = waits_ns
        self.total_ns = total_ns
        self.samples = samples
        self.last_loss = None
        self.compile_ns = None


def measure(options, prepared, import_ns, place=None, startup_ns=None):
    """Run the timed part and return (the measured parts of the record, stolen ticks).

    ``place`` is this rank's among its processes (None: alone), ``startup_ns`` gives the time since the job began.
    """
    place = place or Place()
    startup_ns = startup_ns or clock.process_age_ns
    choices.check(options)
    device = devices.open_device(choices.device(options), place.rank)
    if options["collective"] != "none":
        return collectives.measure(options, place, device, import_ns, startup_ns)
    if device.name == "cuda":
        torch.backends.cudnn.benchmark = options["cudnn_benchmark"]
    samples = tensors.Samples(prepared)
    torch.manual_seed(options["seed"])
    model = models.build(options, samples.set.shape, samples.set.classes)
    equality.refuse_what_cannot_be_equal(model, options)
    parameters = models.count_parameters(model)
    whole = methods.wrap(model, options, place, device)
    step = _step(whole, options, place, device)
    batch = choices.effective_batch(options, place.world)
    source = shards.batches(samples, options, batch, place.rank, place.world)
    ready_ns = startup_ns()
    own = equality.losses_of(step, source, options["verify_steps"], place) if options["verify_steps"] else []
    warm_ns = _warm_up(step, source, options["warmup_steps"], device)
    epoch_steps = -(-len(samples.labels) // batch)
    steps = options["steps"] or options["epochs"] * epoch_steps
    series, counted = _timed(step, source, steps, epoch_steps, device, place)
    source.close()
    loss, accuracy = _evaluate(whole, samples, options, device)
    if not samples.is_whole():
        raise RunError(f"{prepared.path} does not hold {prepared.set.name}: remove that folder and make it again")
    result = {
        "loss": record.finite(loss),
        "accuracy": accuracy,
        "training_loss": record.finite(series.last_loss),
        "parameters": parameters,
        "samples": series.samples,
        "steps": steps,
        "effective_batch": batch,
        "learning_rate": choices.learning_rate(options, place.world),
        "equality": _equality(own, samples, options, place, device),
    }
    data = {"name": prepared.set.name, "stand_in": prepared.set.stand_in, "digest": prepared.set.digest}
    parts, steal = gather(data, result, series, counted, (ready_ns, import_ns, warm_ns))
    parts["timing"]["compile_ns"] = series.compile_ns
    parts["metrics"]["compile_s"] = None if series.compile_ns is None else series.compile_ns / 1e9
    return parts, steal


def _step(model, options, place, device):
    scaled = dict(options, learning_rate=choices.learning_rate(options, place.world))
    step = methods.Step(model, training.optimizer_for(model.parameters(), scaled), options, place, device)
    return graphed.GraphedStep(step) if options["cuda_graphs"] else step


def _warm_up(step, source, steps, device):
    start = time.perf_counter_ns()
    for _ in range(steps):
        step(*next(source))
    device.wait()
    return time.perf_counter_ns() - start


def _timed(step, source, steps, epoch_steps, device, place):
    """Take the timed steps, all ranks together, and return (Series, counters of this process)."""
    if place.world > 1:
        torch.distributed.barrier()
    counted = counters.read()
    now = time.perf_counter_ns
    waits_ns, samples, loss = [], 0, None
    device.begin()
    start = now()
    for _ in range(steps):
        asked = now()
        images, labels, total = next(source)
        waits_ns.append(now() - asked)
        loss = step(images, labels, total)
        samples += total
        device.mark()
    durations_ns = device.durations_ns()
    total_ns = now() - start
    counted = counters.since(counted)
    epochs_ns = [
        sum(durations_ns[first : first + epoch_steps]) for first in range(0, steps - epoch_steps + 1, epoch_steps)
    ]
    total_ns = sum(durations_ns) if device.name == "cpu" else total_ns
    series = Series(durations_ns, epochs_ns, waits_ns, total_ns, samples)
    series.compile_ns = device.compile_ns()
    series.last_loss = _whole_loss(loss, place)
    counted["peak_rss_bytes"] = counters.peak_rss_bytes()
    counted["peak_gpu_bytes"] = device.peak_bytes()
    return series, counted


def _whole_loss(loss, place):
    loss = loss.clone().detach()
    if place.world > 1:
        torch.distributed.all_reduce(loss)
    return loss.item()


def _evaluate(model, samples, options, device):
    """Return (loss, accuracy) over held-out samples; every rank takes part, since FSDP's forward needs all."""
    count = min(options["eval_samples"], len(samples.test_labels))
    if not count:
        return None, None
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for first in range(0, count, 500):
            last = min(first + 500, count)
            images = tensors.to_float(samples.test_images[first:last])
            scores = model(*device.to_here(images)).float().cpu()
            labels = samples.test_labels[first:last]
            loss += torch.nn.functional.cross_entropy(scores, labels, reduction="sum").item()
            right += (scores.argmax(1) == labels).sum().item()
    return loss / count, right / count


def _equality(own, samples, options, place, device):
    """Let rank 0 train alone, after the timed part, and compare; None when no check was asked for."""
    if not own or place.rank:
        return None
    return equality.compare(own, equality.one_process_losses(samples, options, place.world), device.name)


def gather(data, result, series, counted, untimed):
    """Put the measured parts of a record together; ``untimed`` is (start-up, import, warm-up) in nanoseconds."""
    ready_ns, import_ns, warm_ns = untimed
    steal = counted.pop("steal_ticks")
    timing = {
        "startup_ns": ready_ns,
        "import_ns": import_ns,
        "warmup_ns": warm_ns,
        "steps_ns": series.steps_ns,
        "epochs_ns": series.epochs_ns,
        "data_wait_ns": sum(series.waits_ns),
        "training_ns": series.total_ns,
    }
    seconds = {name: None if timing[f"{name}_ns"] is None else timing[f"{name}_ns"] / 1e9 for name in _SECONDS}
    metrics = {
        "samples_per_s": series.samples / (series.total_ns / 1e9),
        **{f"{name}_s": value for name, value in seconds.items()},
        "step_median_s": statistics.median(series.steps_ns) / 1e9,
        "epoch_s": statistics.fmean(series.epochs_ns) / 1e9 if series.epochs_ns else None,
        **counted,
    }
    return {"data": data, "timing": timing, "metrics": metrics, "result": result}, steal


_SECONDS = ("training", "startup", "import", "warmup", "data_wait")

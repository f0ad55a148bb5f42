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
    epoch_steps = -(-len(samples.labels) // batch)
    steps = options["steps"] or options["epochs"] * epoch_steps
    stretch = Stretch(device, place, epoch_steps)
    if options["parallel"] == "lightning":
        from bench.parallel import lightning_way

        own, warm_ns = lightning_way.train(step, source, steps, stretch)
    else:
        own = equality.losses_of(step, source, options["verify_steps"], place) if options["verify_steps"] else []
        warm_ns = _warm_up(step, source, options["warmup_steps"], device)
        _take(step, source, steps, stretch)
    series, counted = stretch.end()
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
    optimizer = training.optimizer_for(model.parameters(), scaled)
    if options["parallel"] == "horovod":
        from bench.parallel import horovod_way

        optimizer = horovod_way.optimizer(optimizer, model, options["accumulation"])
    step = methods.Step(model, optimizer, options, place, device)
    return graphed.GraphedStep(step) if options["cuda_graphs"] else step


def _warm_up(step, source, steps, device):
    start = time.perf_counter_ns()
    for _ in range(steps):
        step(*next(source))
    device.wait()
    return time.perf_counter_ns() - start


def _take(step, source, steps, stretch):
    stretch.begin()
    for _ in range(steps):
        images, labels, total = stretch.fetch(source)
        stretch.step_done(step(images, labels, total), total)


class Stretch:
    """The timed steps of one rank: ``begin``, then ``fetch`` and ``step_done`` in turn, then ``end``."""

    def __init__(self, device, place, epoch_steps):
        self.device = device
        self.place = place
        self.epoch_steps = epoch_steps
        self._waits_ns = []
        self._samples = 0
        self._loss = None

    def begin(self):
        """Start the clock, all ranks together."""
        if self.place.world > 1:
            torch.distributed.barrier()
        self._before = counters.read()
        self._waits_ns = []
        self.device.begin()
        self._start = time.perf_counter_ns()

    def fetch(self, source):
        """Return the next batch; how long it took is noted."""
        asked = time.perf_counter_ns()
        batch = next(source)
        self._waits_ns.append(time.perf_counter_ns() - asked)
        return batch

    def step_done(self, loss, samples):
        """Note the end of a step over ``samples`` samples of all ranks."""
        self._loss = loss
        self._samples += samples
        self.device.mark()

    def end(self):
        """Stop the clock and return (Series, counters of this process)."""
        durations_ns = self.device.durations_ns()
        total_ns = time.perf_counter_ns() - self._start
        counted = counters.since(self._before)
        last = len(durations_ns) - self.epoch_steps + 1
        epochs_ns = [sum(durations_ns[first : first + self.epoch_steps]) for first in range(0, last, self.epoch_steps)]
        total_ns = sum(durations_ns) if self.device.name == "cpu" else total_ns
        series = Series(durations_ns, epochs_ns, self._waits_ns, total_ns, self._samples)
        series.compile_ns = self.device.compile_ns()
        series.last_loss = _whole_loss(self._loss, self.place)
        counted["peak_rss_bytes"] = counters.peak_rss_bytes()
        counted["peak_gpu_bytes"] = self.device.peak_bytes()
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
    kind = device.name if options["autocast"] == "none" else options["autocast"]
    return equality.compare(own, equality.one_process_losses(samples, options, place.world), kind)


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

"""The measured part of a trial: build, get ready, warm up, time, evaluate."""

import gc
import statistics
import time

import torch

from bench import (
    clock,
    compress,
    counters,
    feeds,
    inference,
    models,
    onnx_graph,
    profiling,
    tensors,
    timing,
    training,
)
from bench.errors import RunError
from bench.record import finite


class Ready:
    """A workload that is ready for its first step."""

    def __init__(self, options, prepared, cpus):
        torch.manual_seed(options["seed"])
        self.options = options
        known = prepared.set
        self.model = models.build(options, known.shape, known.classes)
        self.samples = tensors.Samples(prepared)
        self.feed = feeds.Feed(self.samples, options, cpus)
        self.parameters = models.count_parameters(self.model)
        self.sparsity = None
        self.preparation_ns = self._transform()
        self.step = self._step()
        # Taken last: constructing the first optimiser imports more of torch (its compiler, a second or more).
        age = clock.process_age_ns()
        self.startup_ns = None if age is None else age - self.feed.prepare_ns - self.preparation_ns

    def _transform(self):
        """Train and compress a model for inference, and lay it out; return the nanoseconds it took."""
        start, options = time.perf_counter_ns(), self.options
        if options["task"] == "inference":
            training.pretrain(self.model, self.feed.source, options["pretrain_steps"])
            compress.prune_weights(self.model, options)
            self.sparsity = compress.sparsity(self.model)
            self.model = compress.quantize(self.model, self.feed.source, options)
            self.model.train(not options["eval_mode"])
            self.model.to(inference.DTYPES[options["precision"]])
        if options["channels_last"]:
            self.model.to(memory_format=torch.channels_last)
        return time.perf_counter_ns() - start

    def _step(self):
        forward = self.model
        if self.options["compile"] != "none":
            forward = _compiled(self.model, self.options["compile"])
        if self.options["channels_last"]:
            forward = _channels_last(forward)
        if self.options["task"] == "inference":
            return inference.Predictor(forward, self.options)
        return training.Trainer(self.model, forward, self.options)


def _compiled(model, backend):
    import torch._inductor.config

    # A cache left by an earlier trial would make this one's compile time mean nothing.
    if hasattr(torch._inductor.config, "force_disable_caches"):
        torch._inductor.config.force_disable_caches = True
    return torch.compile(model, backend=backend)


def _channels_last(forward):
    return lambda images: forward(images.contiguous(memory_format=torch.channels_last))


def measure(options, prepared, cpus, import_ns):
    """Run the workload; return (the record's parts, stolen ticks of the timed part)."""
    ready = Ready(options, prepared, cpus)
    try:
        return _measure(ready, prepared, import_ns)
    finally:
        ready.feed.close()


def _measure(ready, prepared, import_ns):
    options, feed = ready.options, ready.feed
    compile_ns = _compile_time(ready)
    # The step that compiles is the first of the warm-up, so that compiled or not the same samples are trained on.
    left = options["warmup_steps"] if compile_ns is None else max(options["warmup_steps"] - 1, 0)
    warmup_ns, first_ns = timing.warm_up(ready.step, feed.source, left)
    steps = options["steps"] or options["epochs"] * feed.epoch_steps
    gc.collect()
    start = counters.read()
    timed = timing.take(ready.step, feed.source, steps, feed.epoch_steps)
    counted = counters.since(start)
    counted["peak_rss_bytes"] = counters.peak_rss_bytes()
    steal = counted.pop("steal_ticks")
    times = {
        "startup_ns": ready.startup_ns,
        "import_ns": import_ns,
        "preparation_ns": ready.preparation_ns if options["task"] == "inference" else None,
        "compile_ns": compile_ns,
        "warmup_ns": warmup_ns,
        "first_step_ns": first_ns,
        "steps_ns": timed.steps_ns,
        "epochs_ns": timed.epochs_ns,
        "data_wait_ns": sum(timed.waits_ns),
        "training_ns": timed.total_ns,
    }
    parts = _after(ready)
    parts["result"].update(training_loss=timed.last_loss, samples=timed.samples, steps=steps)
    if not ready.samples.is_whole():
        raise RunError(f"{prepared.path} does not hold {prepared.set.name}: remove that folder and make it again")
    parts["data"] = {name: getattr(prepared.set, name) for name in ("name", "stand_in", "digest")}
    parts["timing"] = times
    parts["metrics"] = dict(_metrics(times, timed), model_bytes=compress.size_bytes(ready.model), **counted)
    return parts, steal


def _compile_time(ready):
    """Take the first step apart from the warm-up where it compiles; return its nanoseconds, else None."""
    if ready.options["compile"] == "none":
        return None
    return timing.warm_up(ready.step, ready.feed.source, 1)[0]


def _after(ready):
    """Do what must not disturb the timed part: profile, evaluate, export."""
    options, shown, graph = ready.options, None, None
    if options["profile_steps"]:
        shown = profiling.profile(ready.step, ready.feed.source, options["profile_steps"])
    loss, accuracy = inference.evaluate(ready.model, ready.samples, options)
    if options["onnx"]:
        graph = onnx_graph.export(ready.model, tensors.to_float(ready.samples.test_images[:1]))
    result = {
        "loss": finite(loss),
        "accuracy": accuracy,
        "parameters": ready.parameters,
        "sparsity": ready.sparsity,
    }
    return {"result": result, "profile": shown, "onnx": graph}


def _metrics(times, timed):
    def seconds(name):
        return None if times[name] is None else times[name] / 1e9

    working = [step - wait for step, wait in zip(timed.steps_ns, timed.waits_ns)]
    latency = {f"latency_p{share}_s": timing.percentile(working, share / 100) / 1e9 for share in (50, 90, 99)}
    return {
        "samples_per_s": timed.samples / (times["training_ns"] / 1e9),
        "training_s": seconds("training_ns"),
        "startup_s": seconds("startup_ns"),
        "import_s": seconds("import_ns"),
        "preparation_s": seconds("preparation_ns"),
        "compile_s": seconds("compile_ns"),
        "warmup_s": seconds("warmup_ns"),
        "first_step_s": seconds("first_step_ns"),
        "data_wait_s": seconds("data_wait_ns"),
        "compute_s": sum(working) / 1e9,
        "step_median_s": statistics.median(timed.steps_ns) / 1e9,
        "epoch_s": statistics.fmean(times["epochs_ns"]) / 1e9 if times["epochs_ns"] else None,
        **latency,
    }

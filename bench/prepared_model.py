"""A network that is ready for its first step: built, prepared for inference, wrapped by its strategy, with its data."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch import Tensor, nn

from bench import dataset_tensors, feeds, model_compression, models, onnx_operator_counts, profiling, steps, timed_loop
from bench.data_sets import Prepared
from bench.dataset_tensors import Batch
from bench.errors import RunError
from bench.options import Options
from bench.parallel import device_and_learning_rate, loss_equality_check, strategies
from bench.rank_and_device import Place
from bench.record import finite
from bench.steps import Step

Forward = Callable[[Tensor], Tensor]


class Network:
    """The work of training or inference; ``length`` is its number of steps.

    ``startup_ns`` is the job's age when all was ready, without work that is not part of a program's start.
    """

    def __init__(self, options: Options, prepared: Prepared, place: Place) -> None:
        self.options, self.prepared, self.place = options, prepared, place
        if place.device.name == "cuda":
            torch.backends.cudnn.benchmark = options["cudnn_benchmark"]
        torch.manual_seed(options["seed"])
        data_set = prepared.set
        self.model = models.build(options, data_set.shape, data_set.classes)
        loss_equality_check.check_comparable(self.model, options)
        self.samples = dataset_tensors.Samples(prepared)
        self.batch = device_and_learning_rate.effective_batch(options, place.world)
        self.feed = feeds.Feed(self.samples, options, place, self.batch)
        self.source: Iterator[Batch] = self.feed.source
        self.parameters = models.count_trainable_parameters(self.model)
        self.sparsity: float | None = None
        start = time.perf_counter_ns()
        self._transform()
        # Only FSDP measures it now, before sharding: saving the weights would affect malloc in the timed part.
        self.model_bytes = model_compression.size_bytes(self.model) if options["parallel"] == "fsdp" else None
        spent_ns = time.perf_counter_ns() - start
        self.preparation_ns = spent_ns if self._predicts else None
        self.whole = strategies.wrap(self.model, options, place)
        self.forward = self._forward()
        self.step = self._step()
        epoch_steps = self.feed.epoch_steps
        self.length = timed_loop.Length(
            checked=options["verify_steps"],
            warm_up=options["warmup_steps"],
            timed=options["steps"] or options["epochs"] * epoch_steps,
            epoch=epoch_steps,
            compiles=options["compile"] != "none",
        )
        # Taken last: creating the first optimiser imports torch's compiler, which adds a second or more.
        age_ns = place.age_ns()
        self.startup_ns = None if age_ns is None else age_ns - self.feed.prepare_ns - spent_ns

    @property
    def _predicts(self) -> bool:
        return bool(self.options["task"] == "inference")

    def _transform(self) -> None:
        """Train and compress the model for inference, and set its memory format."""
        options = self.options
        if self._predicts:
            # Whole batches, with which every process prepares the same model.
            source = feeds.in_memory(self.samples, options, options["batch_size"], Place(self.place.device))
            steps.pretrain(self.model, source, options["pretrain_steps"])
            self.place.give_all_the_weights_of_rank_0(self.model)
            model_compression.prune_weights(self.model, options)
            self.sparsity = model_compression.sparsity(self.model)
            self.model = model_compression.quantize(self.model, source, options)
            self.model.train(not options["eval_mode"])
            self.model.to(steps.DTYPES[options["precision"]])
        if options["channels_last"]:
            self.model.to(memory_format=torch.channels_last)

    def _forward(self) -> Forward:
        forward: Forward = self.whole
        if self.options["compile"] != "none":
            # The batch sizes with which it is called, except an epoch's smaller last batch.
            share, accumulation = self.batch // self.place.world, self.options["accumulation"]
            sizes = {share // accumulation, -(-share // accumulation)}
            forward = _compiled(self.whole, device_and_learning_rate.compiler(self.options), sizes)
        if self.options["channels_last"]:
            return lambda images: forward(images.contiguous(memory_format=torch.channels_last))
        return forward

    def _step(self) -> Step:
        if self._predicts:
            return steps.Predictor(self.forward, self.options, self.place)
        scaled = {
            **self.options,
            "learning_rate": device_and_learning_rate.learning_rate(self.options, self.place.world),
        }
        optimizer = steps.optimizer_for(self.whole.parameters(), scaled)
        step = strategies.trainer(self.whole, self.forward, optimizer, self.options, self.place)
        return steps.GraphedTrainer(step) if self.options["cuda_graphs"] else step

    def drive(self, loop: timed_loop.Loop) -> None:
        """Run all steps of the loop."""
        strategies.fit(self.step, loop, self.options, self.place)

    def after(self, timed: timed_loop.Timed) -> dict[str, Any]:
        """Profile, evaluate, check and export, which must not disturb the timed part."""
        options, profile_result, graph = self.options, None, None
        if options["profile_steps"]:
            profile_result = profiling.profile(self.step, self.source, options["profile_steps"], self.place.device)
        trains = self.whole.training
        loss, accuracy = steps.evaluate(self.whole, self.samples, options, self.place.device)
        if not self.samples.matches_published_digest():
            prepared = self.prepared
            raise RunError(f"{prepared.path} does not hold {prepared.set.name}: remove that folder and make it again")
        size = model_compression.size_bytes(self.model) if self.model_bytes is None else self.model_bytes
        if options["onnx"] and not self.place.rank:
            graph = onnx_operator_counts.export(
                self.model.to("cpu"), dataset_tensors.to_float(self.samples.test_images[:1])
            )
        if trains:  # the process may go on with further steps
            self.whole.train()
        result = {
            "loss": finite(loss),
            "accuracy": accuracy,
            "parameters": self.parameters,
            "sparsity": self.sparsity,
            "effective_batch": self.batch,
            "learning_rate": device_and_learning_rate.learning_rate(options, self.place.world),
            "equality": self._equality(timed.losses),
        }
        data = {name: getattr(self.prepared.set, name) for name in ("name", "stand_in", "digest")}
        return {"data": data, "result": result, "profile": profile_result, "onnx": graph, "model_bytes": size}

    def _equality(self, losses: Any) -> dict[str, Any] | None:
        """Train on rank 0 as one process, after the timed part, and compare; None if no check was requested."""
        if not losses or self.place.rank:
            return None
        reference = loss_equality_check.one_process_losses(self.samples, self.options, self.place.world)
        return loss_equality_check.check_losses_equal(
            losses, reference, loss_equality_check.tolerance(self.options, self.place.device.name)
        )

    def close(self) -> None:
        """End the data feed's workers and remove its files."""
        self.feed.close()


def _compiled(model: nn.Module, backend: str, sizes: set[int]) -> Forward:
    """Return the compiled network; other batch sizes run uncompiled, to avoid recompiling in the timed part."""
    import torch._inductor.config

    # With the cache of an earlier run, the compile time would be meaningless.
    if hasattr(torch._inductor.config, "force_disable_caches"):
        torch._inductor.config.force_disable_caches = True
    if backend == "zentorch":
        importlib.import_module("zentorch")  # registers the back end
    compiled = torch.compile(model, backend=backend)

    def forward(images: Tensor) -> Tensor:
        scores: Tensor = compiled(images) if len(images) in sizes else model(images)
        return scores

    return forward

"""Lightning's Trainer with the same network, data and optimiser; it drives the loop, and is timed from its hooks."""

import logging
import time
import warnings

import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.nn import functional

from bench.parallel import equality

_PRECISION = {"none": "32-true", "bfloat16": "bf16-mixed"}


class _Ranks(LightningEnvironment):
    """Processes that were started and have joined each other already; the Trainer finds their group."""

    def __init__(self, place):
        super().__init__()
        self._place = place

    @property
    def creates_processes_externally(self):
        return True

    def world_size(self):
        return self._place.world

    def global_rank(self):
        return self._place.rank

    def local_rank(self):
        return self._place.rank

    def set_world_size(self, size):
        """Check what the Trainer believes."""
        if size != self._place.world:
            raise ValueError(f"Lightning's Trainer wants {size} processes, and there are {self._place.world}")

    def set_global_rank(self, rank):
        """Do nothing: the rank is known."""

    def teardown(self):
        """Do nothing: the group is left by whoever joined it."""


class _Module(LightningModule):
    def __init__(self, step):
        super().__init__()
        self.model = step.model
        self._given = step.optimizer
        # DDP averages over the ranks, and the Trainer divides by the parts of an accumulated batch.
        self._scale = step.world * step.parts

    def training_step(self, batch, _number):
        images, labels, total = batch
        loss = functional.cross_entropy(self.model(images), labels, reduction="sum") / total
        return {"loss": loss * self._scale, "part": loss.detach()}

    def configure_optimizers(self):
        return self._given


class _Parts:
    """What the Trainer iterates over: every batch's parts; with a length, or it would fetch one ahead."""

    def __init__(self, source, parts, steps, stretch):
        self.source = source
        self.parts = parts
        self.steps = steps
        self.stretch = stretch
        self.total = None

    def __len__(self):
        return self.steps * self.parts

    def __iter__(self):
        for _ in range(self.steps):
            images, labels, self.total = self.stretch.fetch(self.source)
            for piece, theirs in zip(images.tensor_split(self.parts), labels.tensor_split(self.parts)):
                yield piece, theirs, self.total


class _Watch(Callback):
    """Follows the steps: first those that are checked, then the warm-up, then the timed ones."""

    def __init__(self, feed, verified, untimed, stretch):
        self.feed = feed
        self.verified = verified
        self.untimed = untimed
        self.stretch = stretch
        self.losses = []
        self.warm_ns = 0
        self._steps = self._parts = 0
        self._loss = 0.0

    def on_train_start(self, *_):
        self._warm_start = time.perf_counter_ns()
        if not self.untimed:
            self.stretch.begin()

    def on_train_batch_end(self, _trainer, _module, outputs, *_):
        self._loss = self._loss + outputs["part"]
        self._parts += 1
        if self._parts < self.feed.parts:
            return
        loss, self._loss, self._parts = self._loss, 0.0, 0
        self._steps += 1
        if self._steps > self.untimed:
            self.stretch.step_done(loss, self.feed.total)
            return
        if self._steps <= self.verified:
            self.losses.append(loss)
        if self._steps == self.verified:
            self._warm_start = time.perf_counter_ns()
        if self._steps == self.untimed:
            self.warm_ns = time.perf_counter_ns() - self._warm_start
            self.stretch.begin()


def train(step, source, steps, stretch):
    """Train with what ``step`` holds; return (losses of the checked steps, nanoseconds of the warm-up).

    ``stretch`` has the timed steps afterwards.
    """
    options, place = step.options, stretch.place
    untimed = options["verify_steps"] + options["warmup_steps"]
    feed = _Parts(source, step.parts, untimed + steps, stretch)
    watch = _Watch(feed, options["verify_steps"], untimed, stretch)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on workers of a DataLoader, which there is none of
        _trainer(options, place, watch, untimed + steps).fit(_Module(step), feed)
    losses = equality.over_all_ranks(watch.losses, place) if watch.losses else []
    return losses, watch.warm_ns


def _trainer(options, place, watch, steps):
    return Trainer(
        accelerator="cpu",
        devices=place.world,
        strategy=DDPStrategy(
            parallel_devices=[torch.device("cpu")] * place.world,
            cluster_environment=_Ranks(place),
            process_group_backend=place.backend,
        ),
        precision=_PRECISION[options["autocast"]],
        accumulate_grad_batches=options["accumulation"],
        max_steps=steps,
        max_epochs=1,
        callbacks=[watch],
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )

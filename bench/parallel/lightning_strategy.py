"""Lightning's Trainer with the same network, data and optimiser: it runs the steps on batches of the timed loop."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn import functional

from bench.options import Options
from bench.rank_and_device import Place
from bench.timed_loop import Loop

_PRECISION = {"none": "32-true", "bfloat16": "bf16-mixed"}


class _Ranks(LightningEnvironment):
    """The environment of processes that are already started and connected; the Trainer uses their group."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def world_size(self) -> int:
        return self._place.world

    def global_rank(self) -> int:
        return self._place.rank

    def local_rank(self) -> int:
        return self._place.rank

    def set_world_size(self, size: int) -> None:
        """Check the Trainer's number of processes."""
        if size != self._place.world:
            raise ValueError(f"Lightning's Trainer wants {size} processes, and there are {self._place.world}")

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the rank is known."""

    def teardown(self) -> None:
        """Do nothing: the code that joined the group leaves it."""


class _Module(LightningModule):
    """A module that computes like ``bench.steps.Trainer``: the mean of the ranks' losses is the whole batch's."""

    def __init__(self, step: Any, world: int) -> None:
        super().__init__()
        self.model = step.whole
        # The compiled form must not be an attribute: Lightning would see a second network.
        self._step = step
        self._given = step.optimizer
        self._world = world
        # The Trainer divides the loss by the number of accumulated parts, but their gradients must add up.
        self._parts = step.parts

    def training_step(self, batch: Any, _number: int) -> dict[str, Tensor]:
        images, labels, total = batch
        loss = functional.cross_entropy(self._step.forward(images), labels, reduction="sum") * (self._world / total)
        return {"loss": loss * self._parts, "part": loss.detach()}

    def configure_optimizers(self) -> Any:
        return self._given


class _Parts:
    """The parts of every batch, for the Trainer to iterate over; without a length it would prefetch one."""

    def __init__(self, loop: Loop, parts: int) -> None:
        self.loop = loop
        self.parts = parts

    def __len__(self) -> int:
        return self.loop.steps * self.parts

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        for images, labels, total in self.loop:
            for piece, theirs in zip(images.tensor_split(self.parts), labels.tensor_split(self.parts)):
                yield piece, theirs, total


class _Watch(Callback):
    """A callback that reports completed steps to the timed loop."""

    def __init__(self, loop: Loop, parts: int) -> None:
        self._loop = loop
        self._parts = parts
        self._taken = 0
        self._loss: Tensor | None = None

    def on_train_batch_end(self, _trainer: Any, _module: Any, outputs: Any, *_: Any) -> None:
        self._loss = outputs["part"] if self._loss is None else self._loss + outputs["part"]
        self._taken += 1
        if self._taken == self._parts:
            loss, self._loss, self._taken = self._loss, None, 0
            self._loop.done(loss)


def fit(step: Any, loop: Loop, options: Options, place: Place) -> None:
    """Train with the network and optimiser of ``step`` on every batch of the loop."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on DataLoader workers, which are not used here
        watch, feed = _Watch(loop, step.parts), _Parts(loop, step.parts)
        _trainer(options, place, watch, loop.steps).fit(_Module(step, place.world), feed)


def _trainer(options: Options, place: Place, watch: _Watch, steps: int) -> Trainer:
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

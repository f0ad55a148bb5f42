"""Training: the optimiser, and the training step with its options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import precision
from bench.options import Options
from bench.place import Place
from bench.steps import Mark, no_mark
from bench.tensors import Batch

_KEPT: dict[str, Callable[[Tensor], Any] | None] = {
    "none": None,
    "tensor": Tensor.detach,
    "item": Tensor.item,
}


def optimizer_for(parameters: Iterator[nn.Parameter], options: Options) -> torch.optim.Optimizer:
    """Return the optimiser that the workload options ask for."""
    rate, decay = options["learning_rate"], options["weight_decay"]
    if options["optimizer"] == "adam":
        # A recorded graph cannot count steps on the CPU.
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, capturable=options["cuda_graphs"])
    return torch.optim.SGD(parameters, lr=rate, momentum=options["momentum"], weight_decay=decay)


class Trainer:
    """One optimiser step on this process's share of a batch; returns its loss.

    Losses are weighted so that their mean over the processes is the mean over the whole batch, even if shares differ in
    size: DDP, FSDP and Horovod average gradients over the processes. With ``accumulation`` a share is computed in parts
    whose gradients add up, each weighted by its number of samples. ``whole`` contains the weights and is called as
    ``forward``, which may be compiled. ``quiet`` is a context without gradient exchange; entering ``exchanged``
    completes the exchange.
    """

    def __init__(
        self,
        whole: nn.Module,
        forward: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        options: Options,
        place: Place,
    ) -> None:
        self.whole = whole
        self.forward = forward
        self.optimizer = optimizer
        self.device = place.device
        self.world = place.world
        self.parts: int = options["accumulation"]
        self.autocast = precision.autocast(options, place.device.name)
        self.scaler = precision.scaler(options, place.device.name)
        self.quiet: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.exchanged: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.losses: list[Any] = []
        self._set_to_none: bool = options["set_to_none"]
        self._keep = _KEPT[options["log_loss"]]

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> Tensor:
        """Run the step; ``mark`` is called with each phase that ended."""
        self.optimizer.zero_grad(set_to_none=self._set_to_none)
        mark("optimizer")
        images, labels = self.device.to_here(batch.images, batch.labels)
        mark("data")
        loss = self.gradients(images, labels, batch.total, mark)
        self.update()
        self.keep(loss)
        self.device.step_done()
        mark("optimizer")
        return loss

    def gradients(self, images: Tensor, labels: Tensor, total: int, mark: Mark = no_mark) -> Tensor:
        """Compute the gradients, set or add them, and return the loss."""
        if self.parts == 1:
            return self._part(images, labels, total, mark)
        pieces = list(zip(images.tensor_split(self.parts), labels.tensor_split(self.parts)))
        losses = []
        for number, (some, part_labels) in enumerate(pieces, 1):
            # Only the last part's backward must exchange gradients, which are summed over all parts by then.
            with nullcontext() if number == self.parts else self.quiet():
                # An empty part adds nothing, but other processes would wait for its exchange.
                if len(part_labels) or self.world > 1:
                    losses.append(self._part(some, part_labels, total, mark))
        return torch.stack(losses).sum()

    def update(self) -> None:
        """Update the weights from the gradients."""
        if self.scaler is None:
            self.optimizer.step()
            return
        with self.exchanged():
            self.scaler.step(self.optimizer)
        self.scaler.update()

    def keep(self, loss: Tensor) -> None:
        """Log the loss according to ``log_loss``."""
        if self._keep is not None:
            self.losses.append(self._keep(loss))

    def _part(self, images: Tensor, labels: Tensor, total: int, mark: Mark) -> Tensor:
        with self.autocast():
            scores = self.forward(images)
            mark("forward")
            loss = _weighted_loss(scores, labels.to(scores.device), len(labels) * self.world / total)
        mark("loss")
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        mark("backward")
        return loss.detach()


def _weighted_loss(scores: Tensor, labels: Tensor, weight: float) -> Tensor:
    if not weight:  # the mean over no samples is NaN, not 0
        return functional.cross_entropy(scores, labels, reduction="sum")
    loss = functional.cross_entropy(scores, labels)
    return loss if weight == 1.0 else loss * weight


def pretrain(model: nn.Module, source: Iterator[Batch], steps: int) -> None:
    """Train briefly with Adam, so that accuracy shows the effects of later changes to the model."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(steps):
        batch = next(source)
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(batch.images), batch.labels).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)

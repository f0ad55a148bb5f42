"""The steps of training and inference, as the timed loop runs them, with their optimiser and number formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import dataset_tensors
from bench.dataset_tensors import Batch
from bench.devices import Device
from bench.options import Options
from bench.rank_and_device import Place

#: Called with each phase of a step when it has ended.
Mark = Callable[[str], None]


def no_mark(_phase: str) -> None:
    """Do nothing: timed steps do not record phases."""


class Step(Protocol):
    """One step on a batch; returns this process's loss or None. The mean over all processes is the batch's loss.

    A step ends with a call of ``Device.step_submitted``.
    """

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> Tensor | None:
        """Run the step; ``mark`` is called with each phase that ended."""


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(options: Options, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that creates an autocast context for this kind of device, or one that does nothing."""
    if options["autocast"] == "none":
        return nullcontext
    # A recorded graph must not depend on autocast's cache of one call.
    cached = not options["cuda_graphs"]
    return lambda: torch.autocast(device, dtype=DTYPES[options["autocast"]], cache_enabled=cached)


def gradient_scaler_or_none(options: Options, device: str) -> Any:
    """Return the gradient scaler that float16 needs against underflow, or None."""
    return torch.amp.GradScaler(device) if options["autocast"] == "float16" else None


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
    ``forward``, which may be compiled. ``quiet`` is a context without gradient exchange; entering ``after_exchange``
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
        self.autocast = autocast(options, place.device.name)
        self.scaler = gradient_scaler_or_none(options, place.device.name)
        self.quiet: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.after_exchange: Callable[[], AbstractContextManager[Any]] = nullcontext
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
        self.update_weights()
        self.keep(loss)
        self.device.step_submitted()
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

    def update_weights(self) -> None:
        """Update the weights from the gradients."""
        if self.scaler is None:
            self.optimizer.step()
            return
        with self.after_exchange():
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


_UNRECORDED = 3  # warm-up steps that https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs requires


class GraphedTrainer:
    """A ``Trainer`` on one GPU with a CUDA graph; batches of another size than the first run without it.

    With a gradient scaler, the optimiser stays outside the graph: the scaler checks the gradients on the CPU.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._images = self._labels = self._loss = torch.empty(0)
        self._gradients: list[tuple[Tensor, Tensor | None]] = []

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> Tensor:
        """Run the step and return the loss; a replay is one phase, called ``graph``."""
        self._calls += 1
        if self._calls <= _UNRECORDED:
            return self._on_a_side_stream(batch, mark)
        if self._graph is None:
            self._graph = self._record(batch)
        elif batch.images.shape != self._images.shape:
            return self._without_the_graph(batch, mark)
        self._images.copy_(batch.images, non_blocking=True)
        self._labels.copy_(batch.labels, non_blocking=True)
        mark("data")
        self._graph.replay()
        loss = self._loss.clone()
        if self.trainer.scaler is not None:
            self.trainer.update_weights()
        self.trainer.keep(loss)
        mark("graph")
        return loss

    def _on_a_side_stream(self, batch: Batch, mark: Mark) -> Tensor:
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            loss = self.trainer(batch, mark)
        torch.cuda.current_stream().wait_stream(side_stream)
        return loss

    def _record(self, batch: Batch) -> torch.cuda.CUDAGraph:
        trainer, graph = self.trainer, torch.cuda.CUDAGraph()
        # Copies, because what the graph reads must stay at its address.
        self._images, self._labels = (part.clone() for part in trainer.device.to_here(batch.images, batch.labels))
        trainer.optimizer.zero_grad(set_to_none=True)  # then backward allocates gradients in the graph's pool
        with torch.cuda.graph(graph):
            self._loss = trainer.gradients(self._images, self._labels, batch.total)
            if trainer.scaler is None:
                trainer.update_weights()
        parameters = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]
        return graph

    def _without_the_graph(self, batch: Batch, mark: Mark) -> Tensor:
        for parameter, _ in self._gradients:
            parameter.grad = None
        loss = self.trainer(batch, mark)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient  # the graph writes to it
        return loss


_GUARDS: dict[str, Callable[[], Any]] = {
    "none": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


class Predictor:
    """One inference step on a batch; ignores labels and returns no loss."""

    def __init__(self, forward: Callable[[Tensor], Tensor], options: Options, place: Place) -> None:
        self.forward = forward
        self.device = place.device
        self.guard = _GUARDS[options["guard"]]
        self.autocast = autocast(options, place.device.name)
        self.dtype = DTYPES[options["precision"]]

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> None:
        """Predict; ``mark`` is called with each phase when it is done."""
        with self.guard(), self.autocast():
            (images,) = self.device.to_here(batch.images)
            mark("data")
            scores = self.forward(images.to(self.dtype))
            self.device.step_submitted(awaited=True)
        del scores  # deleted late, because XLA skips results without a reference
        mark("forward")


def evaluate(
    model: nn.Module, samples: dataset_tensors.Samples, options: Options, device: Device, batch: int = 500
) -> tuple[float | None, float | None]:
    """Return (mean loss, accuracy from 0 to 1) over the first held-out samples, or (None, None).

    Every process must call it: the forward pass of sharded weights needs all of them.
    """
    count = min(options["eval_samples"], len(samples.test_labels))
    if not count:
        return None, None
    model.eval()
    loss, correct, dtype = 0.0, 0, DTYPES[options["precision"]]
    with torch.no_grad():
        for start in range(0, count, batch):
            stop = min(start + batch, count)
            labels = samples.test_labels[start:stop]
            (images,) = device.to_here(dataset_tensors.to_float(samples.test_images[start:stop]))
            scores = model(images.to(dtype)).float().cpu()
            loss += functional.cross_entropy(scores, labels, reduction="sum").item()
            correct += int((scores.argmax(1) == labels).sum().item())
    return loss / count, correct / count

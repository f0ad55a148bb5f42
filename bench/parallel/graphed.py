"""CUDA graphs: record the whole training step once, then replay it with one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.steps import Mark, no_mark
from bench.tensors import Batch
from bench.training import Trainer

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
            self.trainer.update()
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
                trainer.update()
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

"""CUDA graphs: the whole step is recorded once and then replayed by one launch."""

import torch
from torch.nn import functional

_UNRECORDED = 3  # what https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs asks for before a capture


class GraphedStep:
    """As ``methods.Step`` on one GPU. A batch of another size than the first runs without the graph."""

    def __init__(self, step):
        self.step = step
        self.calls = 0
        self.graph = None
        self.images = self.labels = self.loss = None

    def __call__(self, images, labels, total):
        """Take the step and return the mean loss."""
        images, labels = self.step.device.to_here(images, labels)
        self.calls += 1
        if self.calls <= _UNRECORDED:
            return self._on_a_side_stream(images, labels, total)
        if self.graph is None:
            self._record(images, labels, total)
        elif images.shape != self.images.shape:
            return self.step(images, labels, total)
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss.clone()

    def _on_a_side_stream(self, images, labels, total):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = self.step(images, labels, total)
        torch.cuda.current_stream().wait_stream(side)
        return loss

    def _record(self, images, labels, total):
        self.images, self.labels = images.clone(), labels.clone()
        self.graph = torch.cuda.CUDAGraph()
        optimizer = self.step.optimizer
        optimizer.zero_grad(set_to_none=True)  # so that the recorded backward allocates from the graph's pool
        with torch.cuda.graph(self.graph):
            scores = self.step.model(self.images)
            loss = functional.cross_entropy(scores, self.labels, reduction="sum") / total
            loss.backward()
            optimizer.step()
        self.loss = loss.detach()

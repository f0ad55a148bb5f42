"""Training: the optimiser, and one step with the options that change how it is computed."""

from contextlib import nullcontext

import torch
from torch.nn import functional

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def no_mark(_phase):
    """Mark nothing: the phases of a timed step are not taken."""


def optimizer_for(parameters, options):
    """Return the optimiser that the workload options ask for."""
    rate, decay = options["learning_rate"], options["weight_decay"]
    if options["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=rate, momentum=options["momentum"], weight_decay=decay)


def autocast(options):
    """Return a function that gives a fresh autocast context, or one that does nothing."""
    if options["autocast"] == "none":
        return nullcontext
    return lambda: torch.autocast("cpu", dtype=_DTYPES[options["autocast"]])


def _scaler(options):
    """Return the gradient scaler that float16 needs against underflow, or None."""
    return torch.amp.GradScaler("cpu") if options["autocast"] == "float16" else None


class Trainer:
    """One training step: call it with images (N, C, H, W) and labels (N); it returns the mean loss.

    With ``accumulation`` a batch is computed in parts whose gradients add up to the batch's own: each part's
    mean loss is weighted with its share of the samples, so that a smaller last part counts right.
    """

    def __init__(self, model, forward, options):
        self.forward = forward
        self.optimizer = optimizer_for(model.parameters(), options)
        self.autocast = autocast(options)
        self.scaler = _scaler(options)
        self.parts = options["accumulation"]
        self.set_to_none = options["set_to_none"]
        self.keep = {"none": None, "tensor": torch.Tensor.detach, "item": torch.Tensor.item}[options["log_loss"]]
        self.losses = []

    def __call__(self, images, labels, mark=no_mark):
        """Take the step; ``mark`` is told the phase that just ended."""
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        mark("optimizer")
        whole = self.parts == 1
        loss = self._part(images, labels, 1.0, mark) if whole else self._in_parts(images, labels, mark)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.keep is not None:
            self.losses.append(self.keep(loss))
        mark("optimizer")
        return loss

    def _in_parts(self, images, labels, mark):
        size = -(-len(labels) // self.parts)
        pairs = zip(images.split(size), labels.split(size))
        return sum(self._part(some, theirs, len(theirs) / len(labels), mark) for some, theirs in pairs)

    def _part(self, images, labels, weight, mark):
        with self.autocast():
            scores = self.forward(images)
            mark("forward")
            loss = functional.cross_entropy(scores, labels)
        if weight != 1.0:
            loss = loss * weight
        mark("loss")
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        mark("backward")
        return loss.detach()


def pretrain(model, source, steps):
    """Train a little with Adam, so that what is done to the model later shows in its accuracy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(steps):
        images, labels = next(source)
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

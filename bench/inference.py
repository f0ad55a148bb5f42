"""Inference: the timed inference step and its options, and the evaluation on held-out samples."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import precision, tensors
from bench.devices import Device
from bench.options import Options
from bench.place import Place
from bench.steps import Mark, no_mark
from bench.tensors import Batch

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
        self.autocast = precision.autocast(options, place.device.name)
        self.dtype = precision.DTYPES[options["precision"]]

    def __call__(self, batch: Batch, mark: Mark = no_mark) -> None:
        """Predict; ``mark`` is called with each phase when it is done."""
        with self.guard(), self.autocast():
            (images,) = self.device.to_here(batch.images)
            mark("data")
            scores = self.forward(images.to(self.dtype))
            self.device.step_done(awaited=True)
        del scores  # deleted late, because XLA skips results without a reference
        mark("forward")


def evaluate(
    model: nn.Module, samples: tensors.Samples, options: Options, device: Device, batch: int = 500
) -> tuple[float | None, float | None]:
    """Return (mean loss, accuracy from 0 to 1) over the first held-out samples, or (None, None).

    Every process must call it: the forward pass of sharded weights needs all of them.
    """
    count = min(options["eval_samples"], len(samples.test_labels))
    if not count:
        return None, None
    model.eval()
    loss, correct, dtype = 0.0, 0, precision.DTYPES[options["precision"]]
    with torch.no_grad():
        for start in range(0, count, batch):
            stop = min(start + batch, count)
            labels = samples.test_labels[start:stop]
            (images,) = device.to_here(tensors.to_float(samples.test_images[start:stop]))
            scores = model(images.to(dtype)).float().cpu()
            loss += functional.cross_entropy(scores, labels, reduction="sum").item()
            correct += int((scores.argmax(1) == labels).sum().item())
    return loss / count, correct / count

"""Inference: one step with the options that change how it is computed, and the held-out evaluation."""

from contextlib import nullcontext

import torch
from torch.nn import functional

from bench import tensors
from bench.training import autocast, no_mark

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_GUARDS = {"none": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


class Predictor:
    """One inference step, called with a batch; labels are not looked at, and no loss is returned."""

    def __init__(self, forward, options):
        self.forward = forward
        self.guard = _GUARDS[options["guard"]]
        self.autocast = autocast(options)
        self.dtype = DTYPES[options["precision"]]

    def __call__(self, images, labels, mark=no_mark):
        """Predict; ``mark`` is told when it is done."""
        del labels
        with self.guard(), self.autocast():
            self.forward(images.to(self.dtype))
        mark("forward")


def evaluate(model, samples, options, batch=500):
    """Return (mean loss, accuracy from 0 to 1) over the first held-out samples, or (None, None)."""
    count = min(options["eval_samples"], len(samples.test_labels))
    if not count:
        return None, None
    model.eval()
    loss, right, dtype = 0.0, 0, DTYPES[options["precision"]]
    with torch.no_grad():
        for first in range(0, count, batch):
            last = min(first + batch, count)
            labels = samples.test_labels[first:last]
            scores = model(tensors.to_float(samples.test_images[first:last]).to(dtype)).float()
            loss += functional.cross_entropy(scores, labels, reduction="sum").item()
            right += (scores.argmax(1) == labels).sum().item()
    return loss / count, right / count

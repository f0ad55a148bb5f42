"""The check that a strategy trains like one process: same data order, same effective batch, same losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench import dataset_tensors, feeds, models, steps
from bench.errors import BenchError, RunError
from bench.options import Options
from bench.parallel import device_and_learning_rate, strategies

#: Largest relative difference of a step's loss. Another order of summation changes the seventh digit (2e-7 over 8
#: steps); a lost or doubled shard, or a gradient of the wrong size, changes it by 1e-4 or more. CUDA may use TF32.
#: 16-bit numbers: bfloat16 differed by 1.3e-5 over 5 steps.
_TOLERANCE = {"cpu": 2e-5, "xla": 2e-5, "cuda": 1e-3}
_HALF_TOLERANCE = 2e-4
#: Kernels of GPUs, and fused kernels of compilers, round to 16 bits at other points than the CPU's.
_OTHER_HALF_TOLERANCE = 5e-3


def tolerance(options: Options, device: str) -> float:
    """Return the largest relative difference of losses that rounding explains."""
    if options["autocast"] == "none":
        return _TOLERANCE[device]
    same_places = device == "cpu" and options["compile"] in ("none", "eager", "aot_eager")
    return _HALF_TOLERANCE if same_places else _OTHER_HALF_TOLERANCE


def check_comparable(model: nn.Module, options: Options) -> None:
    """Raise BenchError if the network has layers for which shares do not add up to the whole batch."""
    layers = strategies.batch_dependent_layers(model)
    shared = options["parallel"] != "none" or options["accumulation"] > 1
    if options["verify_steps"] and shared and layers:
        raise BenchError(
            f"--verify-steps is impossible for {options['model']}: {', '.join(layers)} sees its share of the batch only"
        )


def one_process_losses(samples: dataset_tensors.Samples, options: Options, world: int) -> list[float]:
    """Train with plain PyTorch in one process on the CPU; return the losses of ``verify_steps`` steps."""
    torch.manual_seed(options["seed"])
    model = models.build(options, samples.set.shape, samples.set.classes)
    scaled = {**options, "learning_rate": device_and_learning_rate.learning_rate(options, world), "cuda_graphs": False}
    optimizer = steps.optimizer_for(model.parameters(), scaled)
    scaler = steps.gradient_scaler_or_none(options, "cpu")
    losses: list[float] = []
    for numbers in feeds.order(
        feeds.epoch_samples(samples, options), device_and_learning_rate.effective_batch(options, world), options
    ):
        if len(losses) == options["verify_steps"]:
            break
        optimizer.zero_grad()
        with steps.autocast(options, "cpu")():
            scores = model(dataset_tensors.to_float(samples.images[numbers]))
            loss = functional.cross_entropy(scores, samples.labels[numbers])
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    return losses


def check_losses_equal(own: Sequence[float], reference: Sequence[float], allowed: float) -> dict[str, Any]:
    """Return ``result.equality``; raise RunError if a relative difference is above ``allowed``."""
    differences = [abs(loss - expected) / max(abs(expected), 1e-6) for loss, expected in zip(own, reference)]
    # Not "difference > allowed": every comparison with NaN is false.
    number = next((n for n, difference in enumerate(differences) if not difference <= allowed), None)
    if number is not None:
        raise RunError(
            f"this way of training is not equal to one process: the loss of step {number + 1} is {own[number]:.6g}, "
            f"of one process {reference[number]:.6g} (tolerance {allowed:g} of it)"
        )
    return {
        "steps": len(own),
        "losses": list(own),
        "one_process_losses": list(reference),
        "largest_difference": max(differences),
        "tolerance": allowed,
    }

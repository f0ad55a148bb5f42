"""The strategies of parallel training: how each wraps the network, and its other changes to a step."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch
from torch import nn

from bench import steps, timed_loop
from bench.errors import BenchError, SkipError
from bench.options import Options
from bench.parallel import threaded_networks
from bench.rank_and_device import Place
from bench.steps import Trainer


def _single_process(model: nn.Module, _options: Options, place: Place) -> nn.Module:
    return model.to(place.device.device)


def _data_parallel(model: nn.Module, options: Options, place: Place) -> nn.Module:
    if place.device.name == "cuda":
        return nn.DataParallel(model.to(place.device.device))
    return threaded_networks.ThreadedDataParallel(model, 2, steps.autocast(options, place.device.name))


def _stage_devices(options: Options, place: Place) -> list[torch.device]:
    """Return the two devices of a pipeline: two GPUs of this rank, or the CPU twice."""
    if place.device.name != "cuda":
        return [place.device.device, place.device.device]
    gpu_count = torch.cuda.device_count()
    needed_gpus = 2 * place.world
    if gpu_count < needed_gpus:
        raise SkipError(f"parallel: {options['parallel']} needs {needed_gpus} GPUs, and there are {gpu_count}")
    return [torch.device("cuda", 2 * place.rank), torch.device("cuda", 2 * place.rank + 1)]


def _pipeline(model: nn.Module, options: Options, place: Place) -> nn.Module:
    devices = _stage_devices(options, place)
    if not (hasattr(model, "features") and hasattr(model, "classifier")):
        raise BenchError(
            f"--parallel {options['parallel']}: {type(model).__name__} is not a sequence of layers that can be cut "
            "into stages"
        )
    context = steps.autocast(options, place.device.name)
    return threaded_networks.Pipeline([model.features, model.classifier], devices, options["micro_batches"], context)


def _distributed(model: nn.Module, _options: Options, place: Place) -> nn.Module:
    ids = [place.device.device] if place.device.name == "cuda" else None
    return nn.parallel.DistributedDataParallel(model.to(place.device.device), device_ids=ids)


def _distributed_pipeline(model: nn.Module, options: Options, place: Place) -> nn.Module:
    return nn.parallel.DistributedDataParallel(_pipeline(model, options, place))


def _fully_sharded(model: nn.Module, _options: Options, place: Place) -> nn.Module:
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel
    except ImportError as error:
        raise SkipError(f"parallel: this torch has no usable fsdp: {error}") from error
    device = place.device.device
    return FullyShardedDataParallel(model.to(device), device_id=device, use_orig_params=True)


def _horovod(model: nn.Module, _options: Options, _place: Place) -> nn.Module:
    from bench.parallel import horovod_strategy

    return horovod_strategy.wrap(model)


_WRAPS = {
    "none": _single_process,
    "dp": _data_parallel,
    "pipeline": _pipeline,
    "ddp": _distributed,
    "ddp-pipeline": _distributed_pipeline,
    "fsdp": _fully_sharded,
    "lightning": _single_process,  # the Trainer wraps it itself
    "horovod": _horovod,
}


def wrap(model: nn.Module, options: Options, place: Place) -> nn.Module:
    """Prepare a network for training, with equal weights in all processes, or for inference."""
    way = options["parallel"]
    if options["task"] == "inference":
        # Inference exchanges no gradients: each rank predicts its share with its own network.
        way = {"ddp": "none", "ddp-pipeline": "pipeline"}.get(way, way)
    return _WRAPS[way](model, options, place)


def trainer(
    whole: nn.Module,
    forward: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    options: Options,
    place: Place,
) -> Trainer:
    """Return the training step for a wrapped network ``whole``, which is called as ``forward``."""
    step = Trainer(whole, forward, optimizer, options, place)
    if options["parallel"] == "horovod":
        from bench.parallel import horovod_strategy

        step.optimizer = horovod_strategy.optimizer(optimizer, whole, options["accumulation"])
        step.after_exchange = partial(horovod_strategy.after_gradient_exchange, step.optimizer)
    if options["parallel"] == "fsdp" and step.scaler is not None:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        step.scaler = ShardedGradScaler(place.device.name)  # shares overflows of any shard with all ranks
    if options["no_sync"] and hasattr(whole, "no_sync"):
        step.quiet = whole.no_sync
    return step


def fit(step: Any, loop: timed_loop.Loop, options: Options, place: Place) -> None:
    """Run all steps of a loop."""
    if options["parallel"] == "lightning":
        from bench.parallel import lightning_strategy

        lightning_strategy.fit(step, loop, options, place)
    else:
        timed_loop.drive(step, loop)


def batch_dependent_layers(model: nn.Module) -> list[str]:
    """Return the sorted kinds of layers whose results depend on the samples in a batch (batch norms)."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm)
    return sorted({type(module).__name__ for module in model.modules() if isinstance(module, kinds)})

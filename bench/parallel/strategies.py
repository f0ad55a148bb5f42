"""The strategies of parallel training: how each wraps the network, and its other changes to a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import nn

from bench import precision, timing
from bench.errors import BenchError, SkipError
from bench.options import Options
from bench.parallel import pipeline
from bench.place import Place
from bench.training import Trainer

Wrap = Callable[[nn.Module, Options, Place], nn.Module]


def _unchanged_optimizer(optimizer: torch.optim.Optimizer, _model: nn.Module, _parts: int) -> torch.optim.Optimizer:
    return optimizer


def _exchanged_already(_optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    return nullcontext()


def _drive(step: Any, loop: timing.Loop, _options: Options, _place: Place) -> None:
    timing.drive(step, loop)


@dataclass(frozen=True)
class Strategy:
    """A parallel strategy: ``wrap`` prepares a network for training, with equal weights, ``replicate`` for inference.

    In the context ``exchanged``, gradients are averaged over all processes; ``fit`` runs all steps of a loop.
    """

    wrap: Wrap
    replicate: Wrap
    optimizer: Callable[[torch.optim.Optimizer, nn.Module, int], torch.optim.Optimizer] = _unchanged_optimizer
    scaler: Callable[[Options, str], Any] = precision.scaler
    exchanged: Callable[[torch.optim.Optimizer], AbstractContextManager[Any]] = _exchanged_already
    fit: Callable[[Any, timing.Loop, Options, Place], None] = _drive


def _single_process(model: nn.Module, _options: Options, place: Place) -> nn.Module:
    return model.to(place.device.device)


def _data_parallel(model: nn.Module, options: Options, place: Place) -> nn.Module:
    if place.device.name == "cuda":
        return nn.DataParallel(model.to(place.device.device))
    return pipeline.ThreadedDataParallel(model, 2, precision.autocast(options, place.device.name))


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
    try:
        stages = pipeline.stages_of(model, len(devices))
    except ValueError as error:
        raise BenchError(f"--parallel {options['parallel']}: {error}") from None
    context = precision.autocast(options, place.device.name)
    return pipeline.Pipeline(stages, devices, options["micro_batches"], context)


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


def _sharded_scaler(options: Options, device: str) -> Any:
    """Return a gradient scaler that shares overflows of any shard with all ranks, or None."""
    if options["autocast"] != "float16":
        return None
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device)


def _horovod(model: nn.Module, _options: Options, _place: Place) -> nn.Module:
    from bench.parallel import horovod_strategy

    return horovod_strategy.wrap(model)


def _horovod_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, parts: int) -> torch.optim.Optimizer:
    from bench.parallel import horovod_strategy

    return horovod_strategy.optimizer(optimizer, model, parts)


@contextmanager
def _horovod_exchanged(optimizer: Any) -> Iterator[None]:
    """Wait for the gradient exchange first: gradients must not be unscaled while it runs."""
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        yield


def _lightning_fit(step: Any, loop: timing.Loop, options: Options, place: Place) -> None:
    from bench.parallel import lightning_strategy

    lightning_strategy.fit(step, loop, options, place)


_STRATEGIES = {
    "none": Strategy(_single_process, _single_process),
    "dp": Strategy(_data_parallel, _data_parallel),
    "pipeline": Strategy(_pipeline, _pipeline),
    # Inference exchanges no gradients: each rank predicts its share with its own network.
    "ddp": Strategy(_distributed, _single_process),
    "ddp-pipeline": Strategy(_distributed_pipeline, _pipeline),
    "fsdp": Strategy(_fully_sharded, _fully_sharded, scaler=_sharded_scaler),
    "lightning": Strategy(_single_process, _single_process, fit=_lightning_fit),  # the Trainer wraps it itself
    "horovod": Strategy(_horovod, _horovod, optimizer=_horovod_optimizer, exchanged=_horovod_exchanged),
}


def chosen(options: Options) -> Strategy:
    """Return the strategy that the workload options ask for."""
    return _STRATEGIES[options["parallel"]]


def trainer(
    whole: nn.Module,
    forward: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    options: Options,
    place: Place,
) -> Trainer:
    """Return the training step for a wrapped network ``whole``, which is called as ``forward``."""
    strategy = chosen(options)
    optimizer = strategy.optimizer(optimizer, whole, options["accumulation"])
    step = Trainer(whole, forward, optimizer, options, place)
    step.scaler = strategy.scaler(options, place.device.name)
    step.exchanged = lambda: strategy.exchanged(optimizer)
    if options["no_sync"] and hasattr(whole, "no_sync"):
        step.quiet = whole.no_sync
    return step


def batch_dependent_layers(model: nn.Module) -> list[str]:
    """Return the sorted kinds of layers whose results depend on the samples in a batch (batch norms)."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm)
    return sorted({type(module).__name__ for module in model.modules() if isinstance(module, kinds)})

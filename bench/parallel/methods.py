"""The ways to train in parallel: how each wraps the network, and the one step they all share."""

import contextlib

import torch
from torch import nn
from torch.nn import functional

from bench.errors import BenchError, SkipError
from bench.parallel import pipeline


def wrap(model, options, place, device):
    """Return ``model`` wrapped for ``options["parallel"]``; its weights must be the same on every rank."""
    return _WRAPPERS[options["parallel"]](model, options, place, device)


def _alone(model, options, _place, device):
    model = model.to(device.device)
    if options["compile"] == "none":
        return model
    if device.name != "xla":
        raise SkipError(f"compile: {options['compile']} needs device xla, and the environment names {device.name}")
    return torch.compile(model, backend=options["compile"])


def _data_parallel(model, _options, _place, device):
    if device.name == "cuda":
        return nn.DataParallel(model.to(device.device))
    return pipeline.ThreadedDataParallel(model, shares=2)


def _stage_devices(options, place, device):
    """Return the two devices of a pipeline: two GPUs of this rank, or the CPU twice."""
    if device.name != "cuda":
        return [device.device, device.device]
    found = torch.cuda.device_count()
    needed = 2 * place.world
    if found < needed:
        raise SkipError(f"parallel: {options['parallel']} needs {needed} GPUs, and there are {found}")
    return [torch.device("cuda", 2 * place.rank), torch.device("cuda", 2 * place.rank + 1)]


def _pipeline(model, options, place, device):
    devices = _stage_devices(options, place, device)
    try:
        stages = pipeline.stages_of(model, len(devices))
    except ValueError as error:
        raise BenchError(f"--parallel {options['parallel']}: {error}") from None
    return pipeline.Pipeline(stages, devices, options["micro_batches"])


def _distributed(model, _options, _place, device):
    ids = [device.device] if device.name == "cuda" else None
    return nn.parallel.DistributedDataParallel(model.to(device.device), device_ids=ids)


def _distributed_pipeline(model, options, place, device):
    return nn.parallel.DistributedDataParallel(_pipeline(model, options, place, device))


def _fully_sharded(model, _options, _place, device):
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel
    except ImportError as error:
        raise SkipError(f"parallel: fsdp cannot be had in this torch: {error}") from error
    return FullyShardedDataParallel(model.to(device.device), device_id=device.device, use_orig_params=True)


def _horovod(model, _options, _place, _device):
    from bench.parallel import horovod_way

    return horovod_way.wrap(model)


_WRAPPERS = {
    "none": _alone,
    "dp": _data_parallel,
    "pipeline": _pipeline,
    "ddp": _distributed,
    "ddp-pipeline": _distributed_pipeline,
    "fsdp": _fully_sharded,
    "lightning": _alone,  # the Trainer wraps it itself
    "horovod": _horovod,
}


def batch_dependent_layers(model):
    """Return the kinds of layers whose result depends on which samples share a batch (batch norms), sorted."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm)
    return sorted({type(module).__name__ for module in model.modules() if isinstance(module, kinds)})


class Step:
    """One optimiser step on a rank's share of a batch; returns the rank's part of the mean loss.

    The loss is the sum over samples divided by the size of the whole effective batch, times the number of ranks:
    DDP, FSDP and Horovod average gradients over ranks, so that the result is exactly the mean over the batch, also when
    the shares differ in size.
    """

    def __init__(self, model, optimizer, options, place, device):
        self.model = model
        self.optimizer = optimizer
        self.options = options
        self.parts = options["accumulation"]
        self.world = place.world
        self.device = device
        skipping = options["no_sync"] and hasattr(model, "no_sync")
        self._quiet = model.no_sync if skipping else contextlib.nullcontext

    def __call__(self, images, labels, total):
        """Take the step on this rank's images and labels; ``total`` is the size of the effective batch."""
        self.optimizer.zero_grad()
        images, labels = self.device.to_here(images, labels)
        pieces = list(zip(images.tensor_split(self.parts), labels.tensor_split(self.parts)))
        loss = 0.0
        for number, (some, theirs) in enumerate(pieces, 1):
            # Only the last part's backward needs to talk: the gradients of all parts are summed by then.
            with contextlib.nullcontext() if number == self.parts else self._quiet():
                loss = loss + self._part(some, theirs, total)
        self.optimizer.step()
        self.device.step_done()
        return loss

    def _part(self, images, labels, total):
        scores = self.model(images)
        loss = functional.cross_entropy(scores, labels.to(scores.device), reduction="sum") / total
        (loss * self.world).backward()
        return loss.detach()

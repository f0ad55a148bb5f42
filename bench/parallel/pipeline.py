"""A network split over devices, its stages at work on different micro-batches at the same time.

The scheme of https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html : the forward pass is
pipelined; autograd runs backward through the whole graph, which overlaps over GPUs but not over CPU stages.
"""

import queue
import threading

import torch
from torch import nn


def stages_of(model, count):
    """Cut ``model`` into ``count`` sequential stages of about equal numbers of children, in order.

    Raises ValueError for a network that is no sequence of ``features`` and ``classifier``.
    """
    if not (hasattr(model, "features") and hasattr(model, "classifier")):
        raise ValueError(f"{type(model).__name__} is not a sequence of layers that can be cut into stages")
    if count == 1:
        return [nn.Sequential(model.features, model.classifier)]
    return [model.features, model.classifier]


class Pipeline(nn.Module):
    """Stages on ``devices`` (one each); forward cuts its input into ``micro_batches`` and pipelines them."""

    def __init__(self, stages, devices, micro_batches):
        super().__init__()
        self.stages = nn.ModuleList(stage.to(device) for stage, device in zip(stages, devices))
        self.devices = devices
        self.micro_batches = micro_batches

    def forward(self, images):
        """Return the scores of the whole batch, on the last device."""
        lanes = [queue.SimpleQueue() for _ in range(len(self.stages) + 1)]
        for part in images.tensor_split(self.micro_batches):
            lanes[0].put(part)
        mode = torch.is_grad_enabled()
        workers = [
            threading.Thread(target=self._work, args=(number, lanes[number], lanes[number + 1], mode), daemon=True)
            for number in range(len(self.stages) - 1)
        ]
        for worker in workers:
            worker.start()
        self._work(len(self.stages) - 1, lanes[-2], lanes[-1], mode)
        for worker in workers:
            worker.join()
        done = [lanes[-1].get() for _ in range(self.micro_batches)]
        broken = next((part for part in done if isinstance(part, Exception)), None)
        if broken is not None:
            raise broken
        return torch.cat(done)

    def _work(self, number, taken, given, record_gradients):
        """Run one stage over all micro-batches; an error travels down the line in place of its result."""
        with torch.set_grad_enabled(record_gradients):  # grad mode belongs to a thread
            for _ in range(self.micro_batches):
                part = taken.get()
                try:
                    if not isinstance(part, Exception):
                        part = self.stages[number](part.to(self.devices[number], non_blocking=True))
                except Exception as error:
                    part = error
                given.put(part)


class ThreadedDataParallel(nn.Module):
    """What ``nn.DataParallel`` does, for CPUs: scatter the batch, one thread a share, gather the scores.

    ``nn.DataParallel`` itself only calls the module where there is no GPU. All threads use the same weights.
    """

    def __init__(self, module, shares):
        super().__init__()
        self.module = module
        self.shares = shares

    def forward(self, images):
        """Return the scores of the whole batch."""
        parts = images.tensor_split(self.shares)
        done = [None] * self.shares
        mode = torch.is_grad_enabled()

        def work(number):
            try:
                with torch.set_grad_enabled(mode):
                    done[number] = self.module(parts[number])
            except Exception as error:
                done[number] = error

        workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(1, self.shares)]
        for worker in workers:
            worker.start()
        work(0)
        for worker in workers:
            worker.join()
        broken = next((part for part in done if isinstance(part, Exception)), None)
        if broken is not None:
            raise broken
        return torch.cat(done)

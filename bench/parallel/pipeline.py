"""Networks whose parts run in threads: stages on several devices, or one thread per share of the batch.

The pipeline follows https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html : the forward pass is
pipelined; autograd runs backward through the whole graph, which overlaps on GPUs but not between CPU stages.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Callable, Union

import torch
from torch import Tensor, nn

Context = Callable[[], AbstractContextManager[Any]]
_Done = Union[Tensor, Exception]


def stages_of(model: nn.Module, count: int) -> list[nn.Module]:
    """Cut ``model`` into ``count`` sequential stages, 1 or 2.

    Raises ValueError unless the network is a sequence of ``features`` and ``classifier``.
    """
    if not (hasattr(model, "features") and hasattr(model, "classifier")):
        raise ValueError(f"{type(model).__name__} is not a sequence of layers that can be cut into stages")
    if count == 1:
        return [nn.Sequential(model.features, model.classifier)]
    return [model.features, model.classifier]


def _modes_for_threads(context: Context) -> Context:
    """Return a context that gives a thread the caller's modes: gradients, inference mode, autocast."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    @contextmanager
    def modes() -> Iterator[None]:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients), context():
            yield

    return modes


def _whole(parts: Sequence[_Done]) -> Tensor:
    """Concatenate the parts of a batch, or raise the first error among them."""
    for part in parts:
        if isinstance(part, Exception):
            raise part
    return torch.cat([part for part in parts if isinstance(part, Tensor)])


class Pipeline(nn.Module):
    """Stages on ``devices`` (one each); forward cuts its input into ``micro_batches`` and pipelines them.

    Every stage enters ``context``, because autocast applies to one thread only.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        devices: Sequence[torch.device],
        micro_batches: int,
        context: Context = nullcontext,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stage.to(device) for stage, device in zip(stages, devices))
        self.devices = devices
        self.micro_batches = micro_batches
        self.context = context

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the whole batch, on the last device."""
        lanes: list[queue.SimpleQueue[_Done]] = [queue.SimpleQueue() for _ in range(len(self.stages) + 1)]
        for part in images.tensor_split(self.micro_batches):
            lanes[0].put(part)
        modes = _modes_for_threads(self.context)
        workers = [
            threading.Thread(target=self._work, args=(number, lanes[number], lanes[number + 1], modes), daemon=True)
            for number in range(len(self.stages) - 1)
        ]
        for worker in workers:
            worker.start()
        self._work(len(self.stages) - 1, lanes[-2], lanes[-1], modes)
        for worker in workers:
            worker.join()
        return _whole([lanes[-1].get() for _ in range(self.micro_batches)])

    def _work(
        self, number: int, input_queue: queue.SimpleQueue[_Done], output_queue: queue.SimpleQueue[_Done], modes: Context
    ) -> None:
        """Run one stage on all micro-batches; an error replaces the result and is passed on."""
        with modes():
            for _ in range(self.micro_batches):
                part = input_queue.get()
                try:
                    if not isinstance(part, Exception):
                        part = self.stages[number](part.to(self.devices[number], non_blocking=True))
                except Exception as error:
                    part = error
                output_queue.put(part)


class ThreadedDataParallel(nn.Module):
    """``nn.DataParallel`` for CPUs: scatter the batch, run one thread per share, gather the scores.

    Without a GPU, ``nn.DataParallel`` itself only calls the module. All threads use the same weights.
    """

    def __init__(self, module: nn.Module, shares: int, context: Context = nullcontext) -> None:
        super().__init__()
        self.module = module
        self.shares = shares
        self.context = context

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the whole batch."""
        parts = images.tensor_split(self.shares)
        results: list[_Done] = list(parts)
        modes = _modes_for_threads(self.context)

        def work(number: int) -> None:
            try:
                with modes():
                    results[number] = self.module(parts[number])
            except Exception as error:
                results[number] = error

        workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(1, self.shares)]
        for worker in workers:
            worker.start()
        work(0)
        for worker in workers:
            worker.join()
        return _whole(results)

"""Networks whose parts run in threads: two stages on two devices, or one thread per share of the batch.

The pipeline follows https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html : the forward pass is
pipelined; autograd runs backward through the whole graph, which overlaps on GPUs but not between CPU stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any, Callable

import torch
from torch import Tensor, nn

Context = Callable[[], AbstractContextManager[Any]]


def _modes_for_threads(context: Context) -> Context:
    """Return a context that gives a thread the caller's modes: gradients, inference mode, autocast."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    @contextmanager
    def modes() -> Iterator[None]:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients), context():
            yield

    return modes


class Pipeline(nn.Module):
    """Two stages on ``devices`` (one each); forward cuts its input into ``micro_batches`` and pipelines them.

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
        modes, halfway = _modes_for_threads(self.context), SimpleQueue[Any]()

        def run_first_stage() -> None:
            try:
                for part in self._run(0, images.tensor_split(self.micro_batches), modes):
                    halfway.put(part)
            finally:
                halfway.put(None)

        with ThreadPoolExecutor(1) as worker:
            first_stage = worker.submit(run_first_stage)
            scores = list(self._run(1, iter(halfway.get, None), modes))
            first_stage.result()
        return torch.cat(scores)

    def _run(self, number: int, parts: Iterable[Tensor], modes: Context) -> Iterator[Tensor]:
        """Yield what one stage makes of each micro-batch."""
        with modes():
            for part in parts:
                yield self.stages[number](part.to(self.devices[number], non_blocking=True))


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
        modes = _modes_for_threads(self.context)

        def work(share: Tensor) -> Tensor:
            with modes():
                return self.module(share)

        first, *others = images.tensor_split(self.shares)
        with ThreadPoolExecutor(len(others)) as workers:
            results = workers.map(work, others)
            return torch.cat([work(first), *results])

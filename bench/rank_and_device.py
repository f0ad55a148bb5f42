"""The place where steps run: the device, and this process's rank among all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor, distributed

from bench.devices import Device
from bench.evidence.proc_files import own_age_ns


@dataclass(frozen=True)
class Place:
    """This process's place; a single process is rank 0 of 1, without a process group.

    ``cpus`` is the CPU set from before ``import torch``. ``age_ns`` returns the time since the job began. ``scratch``
    is a folder that is deleted after the job (None: the default for temporary files). ``lazy`` is whether Gloo had no
    connections after the processes joined. ``nccl_words`` is the path of NCCL's log.
    """

    device: Device
    rank: int = 0
    world: int = 1
    backend: str | None = None
    interface: str | None = None
    lazy: bool | None = None
    nccl_words: str | None = None
    cpus: Sequence[int] | None = None
    age_ns: Callable[[], int | None] = own_age_ns
    scratch: str | None = None

    def barrier(self) -> None:
        """Wait until all processes have arrived."""
        if self.backend == "nccl":
            distributed.barrier(device_ids=[self.device.device.index])
        elif self.backend:
            distributed.barrier()

    def means(self, losses: Sequence[Tensor]) -> list[float]:
        """Return the mean of each loss over all processes; every process gets the same list."""
        if not losses:
            return []
        losses_tensor = torch.stack([loss.detach().cpu() for loss in losses]).double()
        if self.backend:
            losses_tensor = losses_tensor.to("cuda" if self.backend == "nccl" else "cpu")
            distributed.all_reduce(losses_tensor)
        return [float(loss) / self.world for loss in losses_tensor.tolist()]

    def give_all_the_weights_of_rank_0(self, model: torch.nn.Module) -> None:
        """Copy rank 0's weights to all processes: on a GPU, repeated training differs in the last digits."""
        if self.backend:
            for tensor in model.state_dict().values():
                distributed.broadcast(tensor, 0)

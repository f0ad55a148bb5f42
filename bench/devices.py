"""The device that computes (CPU, CUDA or XLA), with a clock that measures completed work."""

from __future__ import annotations

import importlib
import re
import time
from typing import TYPE_CHECKING, Any, Callable

from bench.errors import SkipError
from bench.evidence import xla
from bench.options import Options
from bench.parallel import device_and_learning_rate

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Device:
    """Base class of devices. Times with the host's clock, which is correct if calls return when their work is done."""

    name: str
    #: Whether marks are placed when a step is complete; otherwise they are placed when it is submitted.
    tells_steps = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list[Any] = []
        self._began_ns = self._ended_ns = 0

    def to_here(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors on this device."""
        return tensors

    def step_submitted(self, awaited: bool = False) -> None:
        """Note that a step is fully submitted; ``awaited``: its result is needed now."""

    def wait(self) -> None:
        """Wait until all submitted work is complete."""

    def begin(self) -> None:
        """Wait for earlier work, then start a series of marks."""
        self.wait()
        self._marks = []
        self._began_ns = time.perf_counter_ns()
        self.mark()

    def mark(self) -> None:
        """Mark the boundary between two parts of the work."""
        self._marks.append(time.perf_counter_ns())

    def durations_ns(self) -> list[int]:
        """Wait for all marks and return the nanoseconds between them."""
        self.wait()
        self._ended_ns = time.perf_counter_ns()
        return [later - earlier for earlier, later in zip(self._marks, self._marks[1:])]

    def begin_to_end_ns(self) -> int:
        """Return the nanoseconds from ``begin`` until ``durations_ns`` had waited for all work."""
        return self._ended_ns - self._began_ns

    def elapsed_ns(self, work: Callable[[], object]) -> int:
        """Run ``work`` to completion with nothing else pending, and return its nanoseconds."""
        self.wait()
        start = time.perf_counter_ns()
        work()
        self.wait()
        return time.perf_counter_ns() - start

    def peak_bytes(self) -> int | None:
        """Return the peak use of the device's own memory, or None if it has none."""
        return None

    def compile_ns(self) -> int | None:
        """Return the compile time in nanoseconds, or None if the device does not report it."""
        return None


class Cpu(Device):
    """The CPU: work is done when a call returns, so the host's clock is enough."""

    name = "cpu"

    def __init__(self, _rank: int = 0) -> None:
        import torch

        super().__init__(torch.device("cpu"))

    def begin_to_end_ns(self) -> int:
        """Return the nanoseconds between the first and the last mark, exactly the sum of the parts."""
        return int(self._marks[-1] - self._marks[0])


class Cuda(Device):
    """A CUDA GPU. Kernels run asynchronously: CUDA events time the parts, two synchronisations the total."""

    name = "cuda"

    def __init__(self, rank: int = 0) -> None:
        import torch

        reason = why_no_cuda(torch)
        if reason:
            raise SkipError(f"device: cuda needs {reason}")
        self._cuda = torch.cuda
        super().__init__(torch.device("cuda", rank % torch.cuda.device_count()))
        torch.cuda.set_device(self.device)

    def to_here(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Copy the tensors to this GPU without waiting."""
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in tensors)

    def wait(self) -> None:
        """Wait until all kernels of this GPU are complete."""
        self._cuda.synchronize(self.device)

    def begin(self) -> None:
        """Wait for earlier work, then start a series of marks and reset the memory peak."""
        self.wait()
        self._cuda.reset_peak_memory_stats(self.device)
        super().begin()

    def mark(self) -> None:
        """Record an event in the stream: it is reached when all earlier kernels are complete."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def durations_ns(self) -> list[int]:
        """Wait for all events and return the nanoseconds between them."""
        self.wait()  # elapsed_time fails before both events are complete
        self._ended_ns = time.perf_counter_ns()
        pairs = zip(self._marks, self._marks[1:])
        return [round(earlier.elapsed_time(later) * 1e6) for earlier, later in pairs]

    def peak_bytes(self) -> int | None:
        """Return the peak of memory that torch's allocator handed out since ``begin``."""
        return int(self._cuda.max_memory_allocated(self.device))


class Xla(Device):
    """An XLA device. Operations are recorded and run at the end of a step; each new graph is compiled first."""

    name = "xla"

    def __init__(self, _rank: int = 0) -> None:
        try:
            self._core = importlib.import_module("torch_xla.core.xla_model")
        except ImportError as error:
            raise SkipError(f"device: xla needs torch_xla, which cannot be imported: {error}") from error
        super().__init__(self._core.xla_device())

    def to_here(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Copy the tensors to the XLA device."""
        return tuple(tensor.to(self.device) for tensor in tensors)

    def step_submitted(self, awaited: bool = False) -> None:
        """End the step's graph: XLA compiles it unless it is cached, and starts it."""
        self._core.mark_step()
        self.tells_steps = awaited
        if awaited:
            self._core.wait_device_ops()

    def wait(self) -> None:
        """Wait until every started graph has run."""
        self._core.mark_step()
        self._core.wait_device_ops()

    def compile_ns(self) -> int | None:
        """Return the total compile time from torch_xla's metrics."""
        return round(float(xla.compile_counters()["compile_s"]) * 1e9)


def why_no_cuda(torch: Any) -> str | None:
    """Return what CUDA needs and lacks here, or None if it can be used. Initialises no GPU that can be used."""
    if torch.version.cuda is None and not getattr(torch.version, "hip", None):  # ROCm builds have torch.cuda too
        return f"a GPU and a torch built with CUDA, and this is {torch.__version__} (built without CUDA)"
    if torch.cuda.is_available():
        return None
    try:
        torch.cuda.init()
        message = ""
    except Exception as error:  # no driver, or one that is too old for this CUDA
        message = ": " + " ".join(str(error).split())[:200]
    too_old = re.search(r"driver on your system is too old \(found version (\d+)\)", message)
    if not too_old:
        return f"a GPU that torch {torch.__version__} can use{message}"
    number = int(too_old[1])  # 11040 is CUDA 11.4 (cudaDriverGetVersion)
    has = f"{number // 1000}.{number % 1000 // 10}"
    return (
        f"a newer NVIDIA driver: the one here knows CUDA up to {has}, and torch {torch.__version__} was built for CUDA "
        f"{torch.version.cuda} (update the driver, or use a torch built for CUDA {has} or older)"
    )


def refuse_to_share_gpus(torch: Any, options: Options, here: int) -> None:
    """Raise SkipError if the ``here`` processes on this machine exceed its GPUs: NCCL needs one GPU per process."""
    if device_and_learning_rate.device(options) != "cuda" or why_no_cuda(torch):
        return
    gpu_count = torch.cuda.device_count()
    if here > gpu_count:
        there = f"there {'is' if gpu_count == 1 else 'are'} {gpu_count}"
        raise SkipError(f"device: cuda needs {here} GPUs for {here} processes, and {there}")


_DEVICES: dict[str, Callable[[int], Device]] = {"cpu": Cpu, "cuda": Cuda, "xla": Xla}


def open_device(name: str, rank: int = 0) -> Device:
    """Return the device for process number ``rank`` of this machine. Raises SkipError with what is missing."""
    return _DEVICES[name](rank)

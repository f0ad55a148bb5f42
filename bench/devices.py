"""The device that computes, and its clock, which knows when the work is done: CPU, CUDA or XLA."""

from __future__ import annotations

import importlib
import re
import time
from typing import TYPE_CHECKING, Any, Callable

from bench.errors import SkipError
from bench.evidence import xla
from bench.options import Options
from bench.parallel import choices

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Device:
    """What computes; its clock is that of the host, which is right where a call returns when its work is over."""

    name: str
    #: Whether marks lie where a step is over; where not, they lie where it was handed over.
    tells_steps = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list[Any] = []
        self._began_ns = self._ended_ns = 0

    def to_here(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors on this device."""
        return tensors

    def step_done(self, awaited: bool = False) -> None:
        """Tell the device that a step is written down; ``awaited``: its result is what is wanted now."""

    def wait(self) -> None:
        """Return when all work given to the device is over."""

    def begin(self) -> None:
        """Start a series of marks; everything given before is over first."""
        self.wait()
        self._marks = []
        self._began_ns = time.perf_counter_ns()
        self.mark()

    def mark(self) -> None:
        """Mark the border between two parts of the work."""
        self._marks.append(time.perf_counter_ns())

    def durations_ns(self) -> list[int]:
        """Return the nanoseconds between marks, after all of them are reached."""
        self.wait()
        self._ended_ns = time.perf_counter_ns()
        return [later - earlier for earlier, later in zip(self._marks, self._marks[1:])]

    def total_ns(self) -> int:
        """Return the nanoseconds from ``begin`` to the end of all work that ``durations_ns`` waited for."""
        return self._ended_ns - self._began_ns

    def elapsed_ns(self, work: Callable[[], object]) -> int:
        """Do some work alone, to its end, and return its nanoseconds."""
        self.wait()
        start = time.perf_counter_ns()
        work()
        self.wait()
        return time.perf_counter_ns() - start

    def peak_bytes(self) -> int | None:
        """Return the peak of the device's own memory, None where it has none."""
        return None

    def compile_ns(self) -> int | None:
        """Return the nanoseconds of compiling that the device itself tells of, None where it tells nothing."""
        return None


class Cpu(Device):
    """Work is over when the call returns, so the clock is simply read."""

    name = "cpu"

    def __init__(self, _rank: int = 0) -> None:
        import torch

        super().__init__(torch.device("cpu"))

    def total_ns(self) -> int:
        """Return the nanoseconds between the first and the last mark: exactly the sum of the parts."""
        return int(self._marks[-1] - self._marks[0])


class Cuda(Device):
    """Kernels run after their call has returned: parts are timed by CUDA events, all of it between two waits."""

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
        """Return when all kernels of this GPU are over."""
        self._cuda.synchronize(self.device)

    def begin(self) -> None:
        """Start a series of marks, and the peak of memory, after everything given before."""
        self.wait()
        self._cuda.reset_peak_memory_stats(self.device)
        super().begin()

    def mark(self) -> None:
        """Record an event in the stream: it is reached when the kernels given before are over."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def durations_ns(self) -> list[int]:
        """Return the nanoseconds between events, after all of them are reached."""
        self.wait()  # elapsed_time is an error before both events are over
        self._ended_ns = time.perf_counter_ns()
        pairs = zip(self._marks, self._marks[1:])
        return [round(earlier.elapsed_time(later) * 1e6) for earlier, later in pairs]

    def peak_bytes(self) -> int | None:
        """Return the peak of the memory that torch's allocator handed out since ``begin``."""
        return int(self._cuda.max_memory_allocated(self.device))


class Xla(Device):
    """Operations are recorded and run at the end of a step; its graph is compiled the first time it is seen."""

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

    def step_done(self, awaited: bool = False) -> None:
        """End the step's graph: XLA compiles it, or finds it compiled, and starts it."""
        self._core.mark_step()
        self.tells_steps = awaited
        if awaited:
            self._core.wait_device_ops()

    def wait(self) -> None:
        """Return when every graph started has run."""
        self._core.mark_step()
        self._core.wait_device_ops()

    def compile_ns(self) -> int | None:
        """Return what torch_xla's metrics say of compiling so far."""
        return round(float(xla.compiled()["compile_s"]) * 1e9)


def why_no_cuda(torch: Any) -> str | None:
    """Say what is missing for CUDA, or None when it can be used. Asks nothing of a GPU that is not there."""
    if torch.version.cuda is None:
        return f"a GPU and a torch built with CUDA, and this is {torch.__version__} (built without CUDA)"
    if not torch.cuda.is_available():
        torch_message = _initialisation_error(torch)
        return (
            _old_driver_reason(torch, torch_message) or f"a GPU that torch {torch.__version__} can use{torch_message}"
        )
    return None


def refuse_to_share_gpus(torch: Any, options: Options, here: int) -> None:
    """Raise SkipError where the ``here`` processes of this machine are more than its GPUs: NCCL wants one for each."""
    if choices.device(options) != "cuda" or why_no_cuda(torch):
        return
    gpu_count = torch.cuda.device_count()
    if here > gpu_count:
        raise SkipError(
            f"device: cuda needs {here} GPUs for {here} processes, and there {_is_or_are(gpu_count)} {gpu_count}"
        )


def _is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"


def _old_driver_reason(torch: Any, said: str) -> str | None:
    """Say what a driver that is too old means, None where ``said`` (torch's own words) is of something else."""
    version_match = re.search(r"driver on your system is too old \(found version (\d+)\)", said)
    if not version_match:
        return None
    number = int(version_match[1])  # 11040 is CUDA 11.4 (cudaDriverGetVersion)
    has = f"{number // 1000}.{number % 1000 // 10}"
    return (
        f"a newer NVIDIA driver: the one here knows CUDA up to {has}, and torch {torch.__version__} was built for CUDA "
        f"{torch.version.cuda} (update the driver, or use a torch built for CUDA {has} or older)"
    )


def _initialisation_error(torch: Any) -> str:
    """Return torch's own words: no driver, or a driver too old for this CUDA."""
    try:
        torch.cuda.init()
    except Exception as error:
        return ": " + " ".join(str(error).split())[:200]
    return ""


_DEVICES: dict[str, Callable[[int], Device]] = {"cpu": Cpu, "cuda": Cuda, "xla": Xla}


def open_device(name: str, rank: int = 0) -> Device:
    """Return the device of this process, the ``rank``-th of its machine, or raise SkipError with what is missing."""
    return _DEVICES[name](rank)

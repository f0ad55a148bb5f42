"""The device a workload trains on, and how time is taken there: CPU, CUDA or XLA."""

import importlib
import re
import time

from bench.errors import SkipError
from bench.evidence import xla
from bench.parallel import choices


class Cpu:
    """Work is over when the call returns, so the clock is simply read."""

    name = "cpu"

    def __init__(self, _rank=0):
        import torch

        self.device = torch.device("cpu")
        self._marks = []

    def to_here(self, *tensors):
        """Return the tensors on this device."""
        return tensors

    def step_done(self):
        """Tell the device that a step is written down (XLA runs it then)."""

    def wait(self):
        """Return when all work given to the device is over."""

    def begin(self):
        """Start a series of marks; everything given before is over first."""
        self.wait()
        self._marks = []
        self.mark()

    def mark(self):
        """Mark the border between two steps."""
        self._marks.append(time.perf_counter_ns())

    def durations_ns(self):
        """Return the nanoseconds between marks, after all of them are reached."""
        self.wait()
        return [later - earlier for earlier, later in zip(self._marks, self._marks[1:])]

    def peak_bytes(self):
        """Return the peak of the device's own memory, None where it has none."""

    def compile_ns(self):
        """Return the nanoseconds that compiling has taken so far, None where nothing is compiled."""


class Cuda(Cpu):
    """Kernels run after their call has returned: steps are timed by CUDA events, all of it between two waits."""

    name = "cuda"

    def __init__(self, rank=0):
        import torch

        super().__init__()
        reason = why_no_cuda(torch)
        if reason:
            raise SkipError(f"device: cuda needs {reason}")
        self._cuda = torch.cuda
        self.device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)

    def to_here(self, *tensors):
        """Copy the tensors to this GPU without waiting."""
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in tensors)

    def wait(self):
        """Return when all kernels of this GPU are over."""
        self._cuda.synchronize(self.device)

    def begin(self):
        """Start a series of marks, and the peak of memory, after everything given before."""
        self.wait()
        self._cuda.reset_peak_memory_stats(self.device)
        self._marks = []
        self.mark()

    def mark(self):
        """Record an event in the stream: it is reached when the step's kernels are over."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def durations_ns(self):
        """Return the nanoseconds between events, after all of them are reached."""
        self.wait()  # elapsed_time is an error before both events are over
        pairs = zip(self._marks, self._marks[1:])
        return [round(earlier.elapsed_time(later) * 1e6) for earlier, later in pairs]

    def peak_bytes(self):
        """Return the peak of the memory that torch's allocator handed out since ``begin``."""
        return self._cuda.max_memory_allocated(self.device)


class Xla(Cpu):
    """Operations are recorded and run at the end of a step; its graph is compiled the first time it is seen."""

    name = "xla"

    def __init__(self, _rank=0):
        try:
            self._core = importlib.import_module("torch_xla.core.xla_model")
        except ImportError as error:
            raise SkipError(f"device: xla needs torch_xla, which cannot be imported: {error}") from error
        super().__init__()
        self.device = self._core.xla_device()

    def to_here(self, *tensors):
        """Copy the tensors to the XLA device."""
        return tuple(tensor.to(self.device) for tensor in tensors)

    def step_done(self):
        """End the step's graph: XLA compiles it, or finds it compiled, and starts it."""
        self._core.mark_step()

    def wait(self):
        """Return when every graph started has run."""
        self._core.mark_step()
        self._core.wait_device_ops()

    def compile_ns(self):
        """Return what torch_xla's metrics say of compiling."""
        return round(xla.compiled()["compile_s"] * 1e9)


def why_no_cuda(torch):
    """Say what is missing for CUDA, or None when it can be used. Asks nothing of a GPU that is not there."""
    if torch.version.cuda is None:
        return f"a GPU and a torch built with CUDA, and this is {torch.__version__} (built without CUDA)"
    if not torch.cuda.is_available():
        said = _initialisation_error(torch)
        return _too_old(torch, said) or f"a GPU that torch {torch.__version__} can use{said}"
    return None


def refuse_to_share_gpus(torch, options, here):
    """Raise SkipError where the ``here`` processes of this machine are more than its GPUs: NCCL wants one for each."""
    if choices.device(options) != "cuda" or why_no_cuda(torch):
        return
    found = torch.cuda.device_count()
    if here > found:
        raise SkipError(f"device: cuda needs {here} GPUs for {here} processes, and there {_is_or_are(found)} {found}")


def _is_or_are(number):
    return "is" if number == 1 else "are"


def _too_old(torch, said):
    """Say what a driver that is too old means, None where ``said`` (torch's own words) is of something else."""
    found = re.search(r"driver on your system is too old \(found version (\d+)\)", said)
    if not found:
        return None
    number = int(found[1])  # 11040 is CUDA 11.4 (cudaDriverGetVersion)
    has = f"{number // 1000}.{number % 1000 // 10}"
    return (
        f"a newer NVIDIA driver: the one here knows CUDA up to {has}, and torch {torch.__version__} was built for CUDA "
        f"{torch.version.cuda} (update the driver, or use a torch built for CUDA {has} or older)"
    )


def _initialisation_error(torch):
    """Return torch's own words: no driver, or a driver too old for this CUDA."""
    try:
        torch.cuda.init()
    except Exception as error:
        return ": " + " ".join(str(error).split())[:200]
    return ""


_DEVICES = {"cpu": Cpu, "cuda": Cuda, "xla": Xla}


def open_device(name, rank=0):
    """Return the device of this process, or raise SkipError with what is missing."""
    return _DEVICES[name](rank)

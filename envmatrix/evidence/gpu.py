"""Evidence on GPUs: as torch sees them, and as NVIDIA's management library does."""

from __future__ import annotations

from pydantic import StrictInt, StrictStr

from envmatrix.evidence.base import Flag, Integer, NumberText, Part, Text, Texts


class CudaDevice(Part):
    """A GPU as torch sees it."""

    name: Text = None
    capability: NumberText = None
    memory_bytes: Integer = None
    multiprocessors: Integer = None
    uuid: Text = None


class CudaSettings(Part):
    """What the process really computes with; ``tf32_probe``: a matrix product dropped bits that fp32 keeps."""

    tf32_matmul: Flag = None
    tf32_cudnn: Flag = None
    cudnn_benchmark: Flag = None
    cudnn_deterministic: Flag = None
    allocator: Text = None
    expandable_segments: Flag = None
    module_loading: Text = None
    tf32_probe: Flag = None


class Clocks(Part):
    """Clocks of a GPU."""

    graphics_mhz: Integer = None
    sm_mhz: Integer = None
    memory_mhz: Integer = None


class Switch(Part):
    """A mode of a GPU now, and after its next reset."""

    current: Flag = None
    pending: Flag = None


class GpuMemory(Part):
    """Memory of a GPU."""

    total_bytes: Integer = None
    used_bytes: Integer = None


class NvmlDevice(Part):
    """A GPU as NVIDIA's management library sees it; ``processes`` are process numbers of the host."""

    name: Text = None
    uuid: Text = None
    clocks: Clocks | None = None
    largest_clocks: Clocks | None = None
    throttle: Texts = None
    temperature_c: Integer = None
    power_mw: Integer = None
    power_limit_mw: Integer = None
    persistence: Integer = None
    compute_mode: Integer = None
    ecc: Switch | None = None
    mig: Switch | None = None
    memory: GpuMemory | None = None
    processes: list[StrictInt] | None = None


class Nvml(Part):
    """What NVIDIA's management library says."""

    driver: Text = None
    devices: list[NvmlDevice] | None = None


class Cuda(Part):
    """CUDA in this process; ``libraries`` maps a family such as libcudart to the files that are mapped.

    ``used``: PyTorch had begun to work on a GPU before it was asked about any. ``looked_for``: an own program asked
    PyTorch whether there is one.
    """

    used: Flag = None
    looked_for: Flag = None
    built_with: NumberText = None
    available: Flag = None
    driver: Text = None
    driver_cuda: NumberText = None
    cudnn: Integer = None
    libraries: dict[StrictStr, list[StrictStr]] | None = None
    devices: list[CudaDevice] | None = None
    settings: CudaSettings | None = None
    visible: Text = None
    nvml: Nvml | None = None

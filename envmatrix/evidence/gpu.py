"""Evidence on GPUs, as reported by torch and by NVIDIA's management library (NVML)."""

from __future__ import annotations

from pydantic import StrictBool, StrictFloat, StrictInt, StrictStr

from envmatrix.evidence.model_base import Flag, Integer, NumberText, Part, Text, Texts


class CudaDevice(Part):
    """A GPU as torch reports it."""

    name: Text = None
    capability: NumberText = None
    memory_bytes: Integer = None
    multiprocessors: Integer = None
    uuid: Text = None


class CudaSettings(Part):
    """What the process really computes with; ``tf32_probe``: a matrix product dropped bits that fp32 keeps.

    ``cublas_workspace_bytes`` is read only where the process has worked on a GPU.
    """

    tf32_matmul: Flag = None
    tf32_cudnn: Flag = None
    cudnn_benchmark: Flag = None
    cudnn_deterministic: Flag = None
    allocator: Text = None
    expandable_segments: Flag = None
    allocator_options: dict[StrictStr, StrictBool | StrictInt | StrictFloat] | None = None
    preferred_blas: Text = None
    preferred_linalg: Text = None
    tunableop: Flag = None
    tunableop_tuning: Flag = None
    cublas_workspace_bytes: Integer = None
    cublaslt_workspace_bytes: Integer = None
    module_loading: Text = None
    tf32_probe: Flag = None


class Clocks(Part):
    """Clock frequencies of a GPU."""

    graphics_mhz: Integer = None
    sm_mhz: Integer = None
    memory_mhz: Integer = None


class Switch(Part):
    """A mode of a GPU: current, and after its next reset."""

    current: Flag = None
    pending: Flag = None


class GpuMemory(Part):
    """Memory of a GPU."""

    total_bytes: Integer = None
    used_bytes: Integer = None


class NvmlDevice(Part):
    """A GPU as NVML reports it; ``processes`` are the host's process ids."""

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
    """GPUs and driver as reported by NVML, NVIDIA's management library."""

    driver: Text = None
    devices: list[NvmlDevice] | None = None


class Cuda(Part):
    """CUDA in this process; ``libraries`` maps a family such as libcudart to the mapped files.

    ``used``: PyTorch had used a GPU before the probe asked about any. ``looked_for``: a user's program asked PyTorch
    whether there is a GPU.
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

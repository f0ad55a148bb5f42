"""Evidence: what a process read back about itself (docs/record.md), each part defined once.

Everything may be absent: a part that could not be read is null, an older ``bench/`` did not look for it, a rank's
differences hold only what differs. Keys that a newer ``bench/`` adds are kept. The fields are the paths that a claim
can name; a dict is open, any key may stand in it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StrictBool, StrictFloat, StrictInt, StrictStr


class NumberInText:
    """Marks a text that may be a number, so that a claim may compare it (``GOMP_SPINCOUNT`` is one, or INFINITY)."""


Text = StrictStr | None
NumberText = Annotated[StrictStr, NumberInText()] | None
Whole = StrictInt | None
Real = StrictFloat | None
Flag = StrictBool | None
Cpus = list[StrictInt] | None
Texts = list[StrictStr] | None
Settings = dict[StrictStr, StrictStr] | None


class Part(BaseModel):
    """A part of a record: frozen, and it keeps the keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="allow")


class OpenMP(Part):
    """The OpenMP runtime that serves torch. ``blocktime`` is in milliseconds; ``settings`` is all it says it took."""

    library: Text = None
    path: Text = None
    version: Text = None
    specification: NumberText = None
    threads: Whole = None
    processors: Whole = None
    places: Whole = None
    dynamic: Whole = None
    thread_limit: Whole = None
    proc_bind: Text = None
    blocktime: Whole = None
    affinity: Text = None
    wait_policy: Text = None
    spin_count: NumberText = None
    settings: Settings = None
    loaded: Texts = None


class Malloc(Part):
    """The allocator that serves ``malloc``, and the options it really took."""

    library: Text = None
    path: Text = None
    version: Text = None
    options: dict[StrictStr, StrictBool | StrictInt | StrictFloat | StrictStr | None] | None = None


class Blas(Part):
    """The library that multiplies matrices."""

    library: Text = None
    path: Text = None
    built_with: Text = None
    mkl_version: Text = None
    onednn_version: Text = None


class Torch(Part):
    """What torch says of itself; ``cpu_capability`` is the instruction set of its own kernels.

    ``threads_set`` are the numbers of threads that an own program asked for while it ran.
    """

    version: Text = None
    path: Text = None
    git: Text = None
    cuda: Text = None
    debug: Flag = None
    threads: Whole = None
    threads_set: list[StrictInt] | None = None
    interop_threads: Whole = None
    cpu_capability: Text = None
    mkl: Flag = None
    onednn: Flag = None
    openmp: Flag = None
    build: Text = None


class Cpu(Part):
    """The processor, and where threads may run. ``thread_affinity`` counts the threads of each CPU list."""

    model: Text = None
    architecture: Text = None
    microcode: Text = None
    flags: Texts = None
    logical: Whole = None
    physical: Whole = None
    sockets: Whole = None
    smt: Text = None
    governor: Text = None
    driver: Text = None
    turbo: Flag = None
    thread_affinity: dict[StrictStr, StrictInt] | None = None
    affinity_before: Cpus = None
    affinity_after: Cpus = None
    affinity_end: Cpus = None
    affinity_list: Text = None


class Memory(Part):
    """Huge pages, NUMA nodes and limits; sizes in bytes."""

    thp: Text = None
    thp_defrag: Text = None
    thp_process: Flag = None
    huge_pages_bytes: Whole = None
    hugetlb_pages: Whole = None
    numa_nodes: Whole = None
    numa_balancing: Whole = None
    nodes_allowed: Text = None
    total_bytes: Whole = None
    limit_bytes: Whole = None
    shm_bytes: Whole = None
    overcommit: Whole = None
    swappiness: Whole = None
    page_bytes: Whole = None
    policy: Text = None


class Cgroup(Part):
    """Limits of the control group; ``cpu_limit`` is in CPUs."""

    version: Whole = None
    cpu_limit: Real = None
    cpu_set: Text = None
    pids_limit: Whole = None
    memory_limit_bytes: Whole = None


class Sandbox(Part):
    """What the container (or its absence) allows; ``seccomp`` 0 is off, 1 strict, 2 a filter."""

    seccomp: Whole = None
    seccomp_filters: Whole = None
    no_new_privs: Flag = None
    speculation_store_bypass: Text = None
    speculation_indirect_branch: Text = None
    capabilities: Text = None
    uid: Whole = None
    root_read_only: Flag = None
    network: Texts = None
    container_traces: Texts = None
    cgroup: Cgroup | None = None
    nice: Whole = None
    scheduler: Whole = None


class System(Part):
    """The system below; ``steal_ticks`` are of the timed part, ``load_1m`` of the start."""

    kernel: Text = None
    distribution: Text = None
    libc: Text = None
    python: Text = None
    executable: Text = None
    clock_source: Text = None
    aslr: Whole = None
    uptime_s: Real = None
    load_1m: Real = None
    steal_ticks: Whole = None
    mhz: Real = None


class OneDnn(Part):
    """What oneDNN really took from its variables."""

    version: Text = None
    isa: Text = None
    runtime: Text = None
    implementation: Text = None
    fpmath: Text = None
    primitive_cache: Flag = None


class LoadedNccl(Part):
    """The libnccl that is mapped."""

    path: Text = None
    version: Text = None


class Collectives(Part):
    """What decides how processes talk; ``hidden_settings`` maps a configuration file to what stands in it."""

    available: Flag = None
    gloo: Flag = None
    nccl: Flag = None
    mpi: Flag = None
    nccl_version: Text = None
    nccl_loaded: LoadedNccl | None = None
    hidden_settings: dict[StrictStr, dict[StrictStr, StrictStr]] | None = None
    variables: Settings = None


class CudaDevice(Part):
    """A GPU as torch sees it."""

    name: Text = None
    capability: NumberText = None
    memory_bytes: Whole = None
    multiprocessors: Whole = None
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

    graphics_mhz: Whole = None
    sm_mhz: Whole = None
    memory_mhz: Whole = None


class Switch(Part):
    """A mode of a GPU now, and after its next reset."""

    current: Flag = None
    pending: Flag = None


class GpuMemory(Part):
    """Memory of a GPU."""

    total_bytes: Whole = None
    used_bytes: Whole = None


class NvmlDevice(Part):
    """A GPU as NVIDIA's management library sees it; ``processes`` are process numbers of the host."""

    name: Text = None
    uuid: Text = None
    clocks: Clocks | None = None
    largest_clocks: Clocks | None = None
    throttle: Texts = None
    temperature_c: Whole = None
    power_mw: Whole = None
    power_limit_mw: Whole = None
    persistence: Whole = None
    compute_mode: Whole = None
    ecc: Switch | None = None
    mig: Switch | None = None
    memory: GpuMemory | None = None
    processes: list[StrictInt] | None = None


class Nvml(Part):
    """What NVIDIA's management library says."""

    driver: Text = None
    devices: list[NvmlDevice] | None = None


class Cuda(Part):
    """CUDA in this process; ``libraries`` maps a family such as libcudart to the files that are mapped."""

    built_with: NumberText = None
    available: Flag = None
    driver: Text = None
    driver_cuda: NumberText = None
    cudnn: Whole = None
    libraries: dict[StrictStr, list[StrictStr]] | None = None
    devices: list[CudaDevice] | None = None
    settings: CudaSettings | None = None
    visible: Text = None
    nvml: Nvml | None = None


class Xla(Part):
    """What torch_xla did; ``fallbacks`` counts the operators that ran outside of it."""

    version: Text = None
    device_wanted: Text = None
    used: Flag = None
    device: Text = None
    hardware: Text = None
    compile_count: Whole = None
    compile_s: Real = None
    execute_count: Whole = None
    fallbacks: dict[StrictStr, StrictInt] | None = None


class Rank(Part):
    """One process of a parallel trial; ``evidence_differs`` is what of its evidence is not as rank 0's."""

    rank: Whole = None
    node: Text = None
    host: Text = None
    pid: Whole = None
    threads: Whole = None
    affinity: Cpus = None
    openmp: Text = None
    steps_ns: list[StrictInt] | None = None
    training_ns: Whole = None
    peak_rss_bytes: Whole = None
    evidence_differs: Evidence | None = None


class Parallel(Part):
    """How many processes took part, and each one's share."""

    way: Text = None
    device: Text = None
    processes: Whole = None
    nodes: Whole = None
    processes_asked: NumberText = None
    threads_per_process: Whole = None
    backend: Text = None
    interface: Text = None
    horovod: Text = None
    ranks: list[Rank] | None = None


class Program(Part):
    """One program of a command that did its share of the work; ``evidence`` is None for the first, whose is above it.

    ``threads`` is the most that one of its processes had at a time, ``share`` its part of the CPU time of all.
    """

    pid: Whole = None
    name: Text = None
    path: Text = None
    cpu_s: Real = None
    share: Real = None
    threads: Whole = None
    evidence: Evidence | None = None


class Evidence(Part):
    """All evidence of one process; ``source`` is set for a program of the user's own (probe or outside).

    ``preloaded`` maps what was to be preloaded to the file of it that is mapped. ``unseen_share`` is the part of the
    CPU time of programs that ended before anybody could look at them.
    """

    openmp: OpenMP | None = None
    malloc: Malloc | None = None
    blas: Blas | None = None
    torch: Torch | None = None
    cpu: Cpu | None = None
    memory: Memory | None = None
    sandbox: Sandbox | None = None
    system: System | None = None
    onednn: OneDnn | None = None
    collectives: Collectives | None = None
    cuda: Cuda | None = None
    xla: Xla | None = None
    parallel: Parallel | None = None
    libraries: Texts = None
    variables: Settings = None
    preloaded: dict[StrictStr, StrictStr | None] | None = None
    source: Text = None
    programs: list[Program] | None = None
    unseen_share: Real = None


Rank.model_rebuild()
Program.model_rebuild()

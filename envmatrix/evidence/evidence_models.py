"""Models of the evidence: what a process read back about itself (docs/record.md).

Every value is optional: null if it could not be read, absent in records of an older ``bench/``, and in a rank's
differences if it equals rank 0's. Unknown keys of a newer ``bench/`` are kept. The fields are the paths that checks can
name; a dict accepts any key.
"""

from __future__ import annotations

from pydantic import StrictBool, StrictFloat, StrictInt, StrictStr

from envmatrix.evidence.gpu import Cuda
from envmatrix.evidence.model_base import Cpus, Flag, Float, Integer, NumberText, Part, Settings, Text, Texts


class OpenMP(Part):
    """The OpenMP runtime that torch uses. ``blocktime`` is in milliseconds; ``settings`` is what it reports.

    ``workers`` counts the threads each runtime had started by the end of the work. ``sleeps``: waiting threads sleep at
    once.
    """

    library: Text = None
    path: Text = None
    version: Text = None
    specification: NumberText = None
    threads: Integer = None
    processors: Integer = None
    places: Integer = None
    dynamic: Integer = None
    thread_limit: Integer = None
    proc_bind: Text = None
    blocktime: Integer = None
    affinity: Text = None
    wait_policy: Text = None
    spin_count: NumberText = None
    sleeps: Flag = None
    workers: dict[StrictStr, StrictInt] | None = None
    settings: Settings = None
    loaded: Texts = None


class Malloc(Part):
    """The allocator behind ``malloc``, the options in effect, and the settings it refused.

    ``arenas`` is the number of heaps, known only for glibc's allocator.
    """

    library: Text = None
    path: Text = None
    version: Text = None
    options: dict[StrictStr, StrictBool | StrictInt | StrictFloat | StrictStr | None] | None = None
    refused: Texts = None
    arenas: Integer = None


class Blas(Part):
    """The BLAS library, which multiplies matrices."""

    library: Text = None
    path: Text = None
    built_with: Text = None
    mkl_version: Text = None
    onednn_version: Text = None


class Torch(Part):
    """The installed torch and its settings; ``cpu_capability`` is the instruction set of its own kernels.

    ``cuda``, ``hip`` (ROCm) and ``xpu`` are the versions that it was built for.

    ``threads_set`` has the thread counts that a user's program set while it ran. ``setters`` is in older records only:
    libraries that could have set another count.
    """

    version: Text = None
    path: Text = None
    git: Text = None
    cuda: Text = None
    hip: Text = None
    xpu: Text = None
    xpu_devices: Texts = None
    debug: Flag = None
    threads: Integer = None
    threads_set: list[StrictInt] | None = None
    setters: Texts = None
    interop_threads: Integer = None
    cpu_capability: Text = None
    mkl: Flag = None
    onednn: Flag = None
    openmp: Flag = None
    build: Text = None


class Cpu(Part):
    """The processor, and the CPUs threads may use. ``thread_affinity`` counts the threads of each CPU list."""

    model: Text = None
    architecture: Text = None
    microcode: Text = None
    flags: Texts = None
    logical: Integer = None
    physical: Integer = None
    sockets: Integer = None
    smt: Text = None
    governor: Text = None
    driver: Text = None
    turbo: Flag = None
    vulnerabilities: Settings = None
    thread_affinity: dict[StrictStr, StrictInt] | None = None
    affinity_before: Cpus = None
    affinity_after: Cpus = None
    affinity_end: Cpus = None
    affinity_list: Text = None


class Memory(Part):
    """Huge pages, NUMA nodes and limits; sizes in bytes. ``nodes``: the NUMA nodes that memory may come from."""

    thp: Text = None
    thp_defrag: Text = None
    thp_process: Flag = None
    huge_pages_bytes: Integer = None
    hugetlb_pages: Integer = None
    numa_nodes: Integer = None
    numa_balancing: Integer = None
    nodes_allowed: Text = None
    total_bytes: Integer = None
    limit_bytes: Integer = None
    shm_bytes: Integer = None
    overcommit: Integer = None
    swappiness: Integer = None
    page_bytes: Integer = None
    policy: Text = None
    nodes: Text = None


class Cgroup(Part):
    """Limits of the cgroup; ``cpu_limit`` is in CPUs, and periods count if any process ran in them."""

    version: Integer = None
    cpu_limit: Float = None
    cpu_periods: Integer = None
    throttled_periods: Integer = None
    cpu_set: Text = None
    pids_limit: Integer = None
    memory_limit_bytes: Integer = None


class Sandbox(Part):
    """Restrictions by a container, if there is one; ``seccomp`` is 0 (off), 1 (strict) or 2 (a filter)."""

    seccomp: Integer = None
    seccomp_filters: Integer = None
    no_new_privs: Flag = None
    speculation_store_bypass: Text = None
    speculation_indirect_branch: Text = None
    capabilities: Text = None
    uid: Integer = None
    root_read_only: Flag = None
    network: Texts = None
    container_traces: Texts = None
    cgroup: Cgroup | None = None
    nice: Integer = None
    scheduler: Integer = None


class System(Part):
    """The operating system; ``steal_ticks`` covers the timed part, ``load_1m`` is from the start.

    ``stops`` counts how often the process, or a program it ran, was stopped and continued.
    """

    kernel: Text = None
    distribution: Text = None
    libc: Text = None
    python: Text = None
    gil: Flag = None
    jit: Flag = None
    executable: Text = None
    clock_source: Text = None
    aslr: Integer = None
    stops: Integer = None
    uptime_s: Float = None
    load_1m: Float = None
    steal_ticks: Integer = None
    mhz: Float = None


class OneDnn(Part):
    """oneDNN's settings in effect; ``rounds``: a float32 convolution lost precision.

    ``primitive_cache_size`` is counted only if a variable asks for fewer than 80; ``matmul_min_dim`` is tried only if
    one sets it.
    """

    version: Text = None
    isa: Text = None
    runtime: Text = None
    implementation: Text = None
    fpmath: Text = None
    rounds: Flag = None
    primitive_cache: Flag = None
    primitive_cache_size: Integer = None
    matmul_min_dim: Integer = None


class Inductor(Part):
    """Settings in effect in torch.compile's compiler, if it compiled anything.

    ``autotuned`` counts how often kernels were benchmarked against each other. ``frozen``: at least one graph was
    frozen; ``cpp_wrapped``: at least one is called through C++. ``zentorch_calls``: calls of zentorch's operators in
    all graphs, if it was imported.
    """

    graphs: Integer = None
    max_autotune: Flag = None
    autotuned: Integer = None
    freezing: Flag = None
    frozen: Flag = None
    cpp_wrapper: Flag = None
    cpp_wrapped: Flag = None
    zentorch_calls: Integer = None


class LoadedNccl(Part):
    """The NCCL library that PyTorch calls."""

    path: Text = None
    version: Text = None


class Collectives(Part):
    """How processes communicate; ``hidden_settings`` maps a configuration file to its settings.

    ``nccl_version`` is the version that PyTorch calls, ``nccl_built_with`` the one it was compiled with.
    """

    available: Flag = None
    gloo: Flag = None
    nccl: Flag = None
    mpi: Flag = None
    nccl_version: Text = None
    nccl_built_with: Text = None
    nccl_loaded: LoadedNccl | None = None
    hidden_settings: dict[StrictStr, dict[StrictStr, StrictStr]] | None = None
    variables: Settings = None


class Xla(Part):
    """The use of torch_xla; ``fallbacks`` counts operators that ran outside XLA."""

    version: Text = None
    device_wanted: Text = None
    used: Flag = None
    device: Text = None
    hardware: Text = None
    compile_count: Integer = None
    compile_s: Float = None
    execute_count: Integer = None
    fallbacks: dict[StrictStr, StrictInt] | None = None


class Rank(Part):
    """One process of a parallel trial; ``evidence_differs`` is its evidence that differs from rank 0's."""

    rank: Integer = None
    node: Text = None
    host: Text = None
    pid: Integer = None
    threads: Integer = None
    affinity: Cpus = None
    openmp: Text = None
    steps_ns: list[StrictInt] | None = None
    training_ns: Integer = None
    peak_rss_bytes: Integer = None
    evidence_differs: Evidence | None = None


class Parallel(Part):
    """The processes of a parallel trial, and the measurements of each.

    ``lazy``: Gloo opened no connections when they joined. ``nccl`` has the variables that NCCL reports as used.
    """

    way: Text = None
    device: Text = None
    processes: Integer = None
    nodes: Integer = None
    processes_asked: NumberText = None
    threads_per_process: Integer = None
    backend: Text = None
    interface: Text = None
    lazy: Flag = None
    nccl: Settings = None
    horovod: Text = None
    ranks: list[Rank] | None = None


class Program(Part):
    """A program of a command that did a share of the work; ``evidence`` is None for the first, which has the outer one.

    ``threads`` is the most that one of its processes had at a time, ``share`` its part of the total CPU time.
    ``busy_threads`` counts threads of its busiest process that used at least a tenth of the busiest thread's time.
    """

    pid: Integer = None
    name: Text = None
    path: Text = None
    cpu_s: Float = None
    share: Float = None
    threads: Integer = None
    busy_threads: Integer = None
    evidence: Evidence | None = None


class OwnSetting(Part):
    """A variable that a program set itself, or a function that it called, its value, and the line that did."""

    name: Text = None
    value: Text = None
    where: Text = None


class Evidence(Part):
    """All evidence of one process; ``source`` is set for a user's program (probe or outside).

    ``packages`` are versions of packages that levels add to torch, as this Python finds them. ``preloaded`` maps
    libraries to preload to the file that is mapped. ``lost_preloads`` are libraries that the loader could not preload
    into a user's program. ``unseen_share`` is the part of the CPU time used by programs that ended too soon to inspect.
    ``left_running`` are programs it started that outlived it. ``served_by`` is what it was connected to while it used
    little CPU time. ``own_settings`` are what the program set itself.
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
    inductor: Inductor | None = None
    collectives: Collectives | None = None
    cuda: Cuda | None = None
    xla: Xla | None = None
    parallel: Parallel | None = None
    packages: Settings = None
    libraries: Texts = None
    variables: Settings = None
    preloaded: dict[StrictStr, StrictStr | None] | None = None
    lost_preloads: Texts = None
    source: Text = None
    programs: list[Program] | None = None
    unseen_share: Float = None
    left_running: Texts = None
    served_by: Texts = None
    own_settings: list[OwnSetting] | None = None


Rank.model_rebuild()
Program.model_rebuild()

"""Evidence: what a process read back about itself (docs/record.md), each part defined once.

Everything may be absent: a part that could not be read is null, an older ``bench/`` did not look for it, a rank's
differences hold only what differs. Keys that a newer ``bench/`` adds are kept. The fields are the paths that a claim
can name; a dict is open, any key may stand in it.
"""

from __future__ import annotations

from pydantic import StrictBool, StrictFloat, StrictInt, StrictStr

from envmatrix.evidence.base import Cpus, Flag, Float, Integer, NumberText, Part, Settings, Text, Texts
from envmatrix.evidence.gpu import Cuda


class OpenMP(Part):
    """The OpenMP runtime that serves torch. ``blocktime`` is in milliseconds; ``settings`` is all it says it took.

    ``workers`` counts the threads that each runtime had started by the end of the work; ``sleeps`` says whether they
    sleep at once when they wait.
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
    """The allocator that serves ``malloc``, the options it really took, and the settings that it did not take.

    ``arenas``: how many heaps there are, of glibc's own alone.
    """

    library: Text = None
    path: Text = None
    version: Text = None
    options: dict[StrictStr, StrictBool | StrictInt | StrictFloat | StrictStr | None] | None = None
    refused: Texts = None
    arenas: Integer = None


class Blas(Part):
    """The library that multiplies matrices."""

    library: Text = None
    path: Text = None
    built_with: Text = None
    mkl_version: Text = None
    onednn_version: Text = None


class Torch(Part):
    """What torch says of itself; ``cpu_capability`` is the instruction set of its own kernels.

    ``threads_set`` are the numbers of threads that an own program asked for while it ran. ``setters`` stands in older
    records: libraries that could have asked for another one.
    """

    version: Text = None
    path: Text = None
    git: Text = None
    cuda: Text = None
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
    """The processor, and where threads may run. ``thread_affinity`` counts the threads of each CPU list."""

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
    """Huge pages, NUMA nodes and limits; sizes in bytes."""

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


class Cgroup(Part):
    """Limits of the control group; ``cpu_limit`` is in CPUs, its periods are those in which any process ran."""

    version: Integer = None
    cpu_limit: Float = None
    cpu_periods: Integer = None
    throttled_periods: Integer = None
    cpu_set: Text = None
    pids_limit: Integer = None
    memory_limit_bytes: Integer = None


class Sandbox(Part):
    """What the container (or its absence) allows; ``seccomp`` 0 is off, 1 strict, 2 a filter."""

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
    """The system below; ``steal_ticks`` are of the timed part, ``load_1m`` of the start.

    ``stops`` counts how often the process, or a program that it ran, was stopped and went on later.
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
    """What oneDNN really took from its variables; ``rounds``: a convolution of float32 lost digits.

    ``primitive_cache_size`` is counted only if a variable asks for fewer than 80.
    """

    version: Text = None
    isa: Text = None
    runtime: Text = None
    implementation: Text = None
    fpmath: Text = None
    rounds: Flag = None
    primitive_cache: Flag = None
    primitive_cache_size: Integer = None


class Inductor(Part):
    """What torch.compile's compiler was set to, where it compiled anything.

    ``autotuned`` counts how often kernels were tried against each other; ``frozen``: some graph was; ``cpp_wrapped``:
    some graph is called through C++.
    """

    graphs: Integer = None
    max_autotune: Flag = None
    autotuned: Integer = None
    freezing: Flag = None
    frozen: Flag = None
    cpp_wrapper: Flag = None
    cpp_wrapped: Flag = None


class LoadedNccl(Part):
    """The NCCL whose functions PyTorch calls."""

    path: Text = None
    version: Text = None


class Collectives(Part):
    """What decides how processes talk; ``hidden_settings`` maps a configuration file to what stands in it.

    ``nccl_version`` is that of the NCCL that PyTorch calls, ``nccl_built_with`` the one that it was compiled against.
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
    """What torch_xla did; ``fallbacks`` counts the operators that ran outside of it."""

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
    """One process of a parallel trial; ``evidence_differs`` is what of its evidence is not as rank 0's."""

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
    """How many processes took part, and each one's share.

    ``lazy``: Gloo connected to nobody when they joined. ``nccl`` maps variables to what NCCL says it took.
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
    """One program of a command that did its share of the work; ``evidence`` is None for the first, whose is above it.

    ``threads`` is the most that one of its processes had at a time, ``share`` its part of the CPU time of all.
    ``busy_threads``: so many threads of its busiest process took a tenth of what the busiest of them took.
    """

    pid: Integer = None
    name: Text = None
    path: Text = None
    cpu_s: Float = None
    share: Float = None
    threads: Integer = None
    busy_threads: Integer = None
    evidence: Evidence | None = None


class Evidence(Part):
    """All evidence of one process; ``source`` is set for a program of the user's own (probe or outside).

    ``packages`` are versions of what levels put beside torch, where this Python finds it.
    ``preloaded`` maps what was to be preloaded to the file of it that is mapped, ``lost_preloads`` are libraries that
    the loader said it could not preload into a program of the user's own. ``unseen_share`` is the part of the CPU
    time of programs that ended before anybody could look at them. ``left_running`` are programs that it started and
    that went on when it had ended, ``served_by`` what it was connected to while it used little of a CPU itself.
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


Rank.model_rebuild()
Program.model_rebuild()

"""Map environment variables to the libraries that read them: without its reader a setting has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

#: Start of a message that nothing in the process reads a setting.
NOT_IN_EFFECT = "not in effect: "


class PresenceTest(Enum):
    """What, besides the mapped libraries, decides whether a reader is present."""

    OPENMP = "the runtime in use, and those with running threads"
    MALLOC = "the library that provides malloc"
    MKL = "PyTorch may contain it"
    ONEDNN = "PyTorch may contain it, too"
    INDUCTOR = "something was compiled"
    GPU = "there is a GPU"
    MAPPED = "nothing else"


@dataclass(frozen=True)
class Reader:
    """A library that reads variables: its common ``name``, and parts of the paths of its files."""

    name: str
    libraries: tuple[str, ...]
    presence_test: PresenceTest = PresenceTest.MAPPED


_INTEL, _GNU = ("/libiomp5", "/libomp"), ("/libgomp",)
_ANY = (*_INTEL, *_GNU)
_CUDA = ("/libcudart", "/libcuda.", "/libtorch_cuda", "/libnccl", "/libcudnn", "/libcublas")
_ROCM = ("/libamdhip", "/libhsa-runtime", "/libtorch_hip", "/librccl")
_TORCH = Reader("PyTorch", ("/libtorch", "/libc10"))
_OPENMP = Reader("an OpenMP runtime", (*_ANY, "openblas", "/libblis", "/libmkl", "/libtorch"), PresenceTest.OPENMP)
_CUDA_GPU = Reader("CUDA", _CUDA, PresenceTest.GPU)
_ROCM_GPU = Reader("ROCm", _ROCM, PresenceTest.GPU)
_GPU_OF_EITHER = Reader("PyTorch's part for GPUs", (*_CUDA, *_ROCM), PresenceTest.GPU)
_ONEDNN = Reader("oneDNN", ("/libdnnl", "/libmkldnn", "/libtorch_cpu"), PresenceTest.ONEDNN)
_JEMALLOC = Reader("jemalloc", ("/libjemalloc",), PresenceTest.MALLOC)
#: Name prefix -> reader; the longest matching prefix wins. None: every process reads it.
_READERS: Mapping[str, Reader | None] = {
    "OMP_": _OPENMP,
    "KMP_": Reader("Intel's or LLVM's OpenMP runtime", _INTEL, PresenceTest.OPENMP),
    "LIBOMP_": Reader("LLVM's OpenMP runtime", _INTEL, PresenceTest.OPENMP),
    "GOMP_": Reader("GNU's OpenMP runtime", _GNU, PresenceTest.OPENMP),
    # Intel's and LLVM's runtimes read both too (kmp_settings.cpp).
    "GOMP_CPU_AFFINITY": Reader("an OpenMP runtime", _ANY, PresenceTest.OPENMP),
    "GOMP_STACKSIZE": Reader("an OpenMP runtime", _ANY, PresenceTest.OPENMP),
    "MKL_": Reader("MKL", ("/libmkl", "/libtorch_cpu"), PresenceTest.MKL),
    "OPENBLAS_": Reader("OpenBLAS", ("openblas",)),
    "GOTO_": Reader("OpenBLAS", ("openblas",)),
    "BLIS_": Reader("BLIS", ("/libblis", "/libflame")),
    "ONEDNN_": _ONEDNN,
    "DNNL_": _ONEDNN,
    "TBB_": Reader("TBB", ("/libtbb",)),
    "NUMEXPR_": Reader("NumExpr", ("/numexpr/",)),
    "TOKENIZERS_": Reader("tokenizers", ("/tokenizers/",)),
    "TRITON_": Reader("Triton", ("/triton/",)),
    "MALLOC_": Reader("glibc's malloc", ("/libc.so", "/libc-"), PresenceTest.MALLOC),
    "GLIBC_TUNABLES": Reader("glibc", ("/libc.so", "/libc-")),
    "MALLOC_CONF": _JEMALLOC,
    "JEMALLOC_": _JEMALLOC,
    "_RJEM_MALLOC_CONF": None,  # read by Rust programs with their own jemalloc
    "TCMALLOC_": Reader("tcmalloc", ("/libtcmalloc",), PresenceTest.MALLOC),
    "MIMALLOC_": Reader("mimalloc", ("/libmimalloc",), PresenceTest.MALLOC),
    "TORCH": _TORCH,
    "PYTORCH_": _TORCH,
    "ATEN_": _TORCH,
    "THP_MEM_ALLOC_ENABLE": _TORCH,
    "TORCHINDUCTOR_": Reader("torch.compile", ("/libtorch",), PresenceTest.INDUCTOR),
    "TORCH_NCCL_": Reader("PyTorch's NCCL back end", ("/libtorch_cuda",), PresenceTest.GPU),
    "PYTORCH_CUDA_ALLOC_CONF": _CUDA_GPU,
    "PYTORCH_TUNABLEOP_": _GPU_OF_EITHER,
    "TORCH_BLAS_PREFER_": _GPU_OF_EITHER,
    "TORCH_LINALG_PREFER_": _GPU_OF_EITHER,
    "TORCH_CUDNN_": _CUDA_GPU,
    "NVTE_": Reader("Transformer Engine", ("/transformer_engine",)),
    "NCCL_": Reader("NCCL", ("/libnccl", "/librccl", "/libtorch_cuda", "/libtorch_hip"), PresenceTest.GPU),
    "RCCL_": Reader("RCCL", ("/librccl", "/libtorch_hip"), PresenceTest.GPU),
    "CUDA_": _CUDA_GPU,
    "CUDA_VISIBLE_DEVICES": Reader("CUDA", _CUDA),
    "CUBLAS": _CUDA_GPU,
    "CUDNN_": _CUDA_GPU,
    "NVIDIA_TF32_OVERRIDE": _CUDA_GPU,
    "HIP_": _ROCM_GPU,
    "HSA_": _ROCM_GPU,
    "ROCR_": _ROCM_GPU,
    "ZE_": Reader("Level Zero, the interface to Intel's GPUs", ("/libze_loader",), PresenceTest.GPU),
    "MIOPEN_": _ROCM_GPU,
    "GPU_MAX_HW_QUEUES": _ROCM_GPU,
    "GLOO_": _TORCH,
    "UCX_": Reader("UCX", ("/libucp", "/libucs")),
    "FI_": Reader("libfabric", ("/libfabric",)),
    "OMPI_": Reader("Open MPI", ("/libmpi", "/libopen-rte", "/libopen-pal")),
    "MPICH_": Reader("Cray MPICH", ("/libmpi",)),
    "I_MPI_": Reader("Intel MPI", ("/libmpi",)),
    "HOROVOD_": Reader("Horovod", ("/horovod/",)),
    "PJRT_": Reader("XLA", ("/_XLAC", "/xla_extension", "/jaxlib/", "/libtpu")),
    "XLA_": Reader("XLA", ("/_XLAC", "/xla_extension", "/jaxlib/", "/libtpu", "/libtensorflow")),
    "LD_": None,
    "LC_": None,
    "LANG": None,
    "TZ": None,
    "TMPDIR": None,
    "BENCH_": None,
    "PYTHON": None,
}


def has_known_reader(name: str) -> bool:
    """Return whether the reader of a variable is known."""
    return _longest_prefix(name) is not None


def find_reader(name: str) -> Reader | None:
    """Return the reader of a variable; None if every process reads it, or if it is unknown."""
    return _READERS.get(_longest_prefix(name) or "")


def _longest_prefix(name: str) -> str | None:
    return max((start for start in _READERS if name.startswith(start)), key=len, default=None)

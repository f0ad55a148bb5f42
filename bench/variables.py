"""What a record says of a process's variables: values of those that bear on performance, of all others the name alone.

A record is shown to others, and what its reader started it with is none of their business: a digest of a short password
can be guessed, so there is none. The host reads this file too: it must expect what is written here (docs/record.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

HIDDEN = "(hidden)"
SET = "(set)"
#: Holds the names, comma-separated, of what the environment itself sets beside those known here.
NAMES = "BENCH_VARIABLES"
#: Holds the names, comma-separated, of packages that some claim of the run names.
PACKAGES = "BENCH_PACKAGES"
#: Runtimes, libraries and tools whose settings change how fast a program is.
_PREFIXES = (
    "OMP_", "KMP_", "GOMP_", "LIBOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_", "TBB_", "DNNL_",
    "ONEDNN_", "MALLOC_", "_RJEM_MALLOC_", "JEMALLOC_", "TCMALLOC_", "MIMALLOC_", "GLIBC_", "LD_", "CUDA_", "CUBLAS",
    "CUDNN_", "NVIDIA_", "NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_", "TORCH", "PYTORCH_", "ATEN_", "TRITON_",
    "XLA_", "PJRT_", "TPU_", "HOROVOD_", "PYTHON", "LC_", "BENCH_",
)  # fmt: skip
_NAMES = frozenset({"LANG", "TMPDIR", "TOKENIZERS_PARALLELISM", "SLURM_CPU_BIND", "SLURM_MEM_BIND"})
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|HOST|ADDR|COMM_ID", re.IGNORECASE)
#: A token or a password: whatever stands before the @ of http, or holds a colon; git@ of ssh is none.
_USERINFO = re.compile(r"(https?://|[A-Za-z][A-Za-z0-9+.-]*://(?=[^\s/?#@:\"'\\]*:))[^\s/?#@\"'\\]+@")


def bears_on_performance(name: str) -> bool:
    """Say whether a variable is one of those whose values are always written."""
    return name in _NAMES or (name.startswith(_PREFIXES) and not _SECRET.search(name))


def shown(name: str, value: str, named: Collection[str] = ()) -> str:
    """Return what is written of a variable; ``named`` are those that the environment itself sets."""
    if bears_on_performance(name):
        return without_userinfo(value)
    if _SECRET.search(name):
        return HIDDEN
    return without_userinfo(value) if name in named else SET


def all_shown(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what is written of all variables of a process."""
    named_variables = variables.get(NAMES, "").split(",")
    return {name: shown(name, value, named_variables) for name, value in variables.items()}


def without_userinfo(text: str) -> str:
    """Return a text whose URLs hold no password and no token."""
    return _USERINFO.sub(rf"\1{HIDDEN}@", text)

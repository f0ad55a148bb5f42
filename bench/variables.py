"""Rules for variables in records: show the values of those that affect performance, and only the names of others.

Records are shared, so other values stay private. There is no digest either, because it would reveal a short password.
The host uses this file too: it must expect the same text (docs/record.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

HIDDEN = "(hidden)"
SET = "(set)"
#: The variable with the comma-separated names of other variables that the environment sets.
NAMES = "BENCH_VARIABLES"
#: The variable with the comma-separated names of packages that checks of the run name.
PACKAGES = "BENCH_PACKAGES"
#: Runtimes, libraries and tools whose settings change how fast a program is.
_PREFIXES = (
    "OMP_",
    "KMP_",
    "GOMP_",
    "LIBOMP_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "VECLIB_",
    "NUMEXPR_",
    "TBB_",
    "DNNL_",
    "ONEDNN_",
    "MALLOC_",
    "_RJEM_MALLOC_",
    "JEMALLOC_",
    "TCMALLOC_",
    "MIMALLOC_",
    "GLIBC_",
    "LD_",
    "CUDA_",
    "CUBLAS",
    "CUDNN_",
    "NVIDIA_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "MIOPEN_",
    "ZE_",
    "ONEAPI_",
    "SYCL_",
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "UCX_",
    "FI_",
    "TORCH",
    "PYTORCH_",
    "ATEN_",
    "TRITON_",
    "XLA_",
    "PJRT_",
    "TPU_",
    "HOROVOD_",
    "PYTHON",
    "LC_",
    "BENCH_",
)
_NAMES = frozenset({"LANG", "TMPDIR", "TOKENIZERS_PARALLELISM", "SLURM_CPU_BIND", "SLURM_MEM_BIND"})
_PLACES = frozenset({"TORCHINDUCTOR_CACHE_DIR"})  # a folder of each trial
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|HOST|ADDR|COMM_ID", re.IGNORECASE)
#: A token or a password: all text before the @ of an http URL, in other URLs only with a colon (not ssh's git@).
_USERINFO = re.compile(r"(https?://|[A-Za-z][A-Za-z0-9+.-]*://(?=[^\s/?#@:\"'\\]*:))[^\s/?#@\"'\\]+@")


def bears_on_performance(name: str) -> bool:
    """Return whether a variable's value is always recorded."""
    return name in _NAMES or (name.startswith(_PREFIXES) and name not in _PLACES and not _SECRET.search(name))


def shown(name: str, value: str, named: Collection[str] = ()) -> str:
    """Return a variable's text in the record; ``named`` are variables that the environment sets."""
    if bears_on_performance(name):
        return without_userinfo(value)
    if _SECRET.search(name):
        return HIDDEN
    return without_userinfo(value) if name in named else SET


def all_shown(variables: Mapping[str, str]) -> dict[str, str]:
    """Return {name: text in the record} for all variables of a process."""
    named_variables = variables.get(NAMES, "").split(",")
    return {name: shown(name, value, named_variables) for name, value in variables.items()}


def without_userinfo(text: str) -> str:
    """Return a text with passwords and tokens in URLs replaced."""
    return _USERINFO.sub(rf"\1{HIDDEN}@", text)

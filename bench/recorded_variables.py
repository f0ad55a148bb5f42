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
_BEARING = re.compile(
    "(OMP|KMP|GOMP|LIBOMP|MKL|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|TBB|DNNL|ONEDNN|MALLOC|_RJEM_MALLOC|JEMALLOC|TCMALLOC"
    "|MIMALLOC|GLIBC|LD|CUDA|CUDNN|NVIDIA|HIP|HSA|ROCR|MIOPEN|ZE|ONEAPI|SYCL|NCCL|GLOO|UCX|FI|PYTORCH|ATEN|TRITON|XLA"
    "|PJRT|TPU|HOROVOD|LC|BENCH)_|CUBLAS|TORCH|PYTHON"
)
_NAMES = frozenset({"LANG", "TMPDIR", "TOKENIZERS_PARALLELISM", "SLURM_CPU_BIND", "SLURM_MEM_BIND"})
_PLACES = frozenset({"TORCHINDUCTOR_CACHE_DIR"})  # a folder of each trial
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|HOST|ADDR|COMM_ID", re.IGNORECASE)
#: A token or a password: all text before the @ of an http URL, in other URLs only with a colon (not ssh's git@).
_USERINFO = re.compile(r"(https?://|[A-Za-z][A-Za-z0-9+.-]*://(?=[^\s/?#@:\"'\\]*:))[^\s/?#@\"'\\]+@")


def is_always_recorded(name: str) -> bool:
    """Return whether a variable's value is always recorded."""
    return name in _NAMES or bool(_BEARING.match(name) and name not in _PLACES and not _SECRET.search(name))


def recorded_text(name: str, value: str, named: Collection[str] = ()) -> str:
    """Return a variable's text in the record; ``named`` are variables that the environment sets."""
    if is_always_recorded(name):
        return without_userinfo(value)
    if _SECRET.search(name):
        return HIDDEN
    return without_userinfo(value) if name in named else SET


def recorded_texts(variables: Mapping[str, str]) -> dict[str, str]:
    """Return {name: text in the record} for all variables of a process."""
    named_variables = variables.get(NAMES, "").split(",")
    return {name: recorded_text(name, value, named_variables) for name, value in variables.items()}


def without_userinfo(text: str) -> str:
    """Return a text with passwords and tokens in URLs replaced."""
    return _USERINFO.sub(rf"\1{HIDDEN}@", text)

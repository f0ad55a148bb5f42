"""Find shared libraries installed on this machine, and suggest how to install missing ones."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from envmatrix.errors import EnvmatrixError
from envmatrix.plan.environment import Library
from envmatrix.system.process import run

_LDCONFIG_LINE = re.compile(r"^\s+(\S+) \(([^)]*)\) => (\S+)$", re.MULTILINE)
_FOLDERS = (
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib",
    "/opt/intel/oneapi/compiler/latest/lib",
)
#: Prefix of a library's file name -> package for apt, dnf and conda.
_PACKAGES = {
    "libjemalloc": ("libjemalloc2", "jemalloc", "jemalloc"),
    "libtcmalloc_minimal": ("libtcmalloc-minimal4", "gperftools-libs", "gperftools"),
    "libtcmalloc": ("libgoogle-perftools4", "gperftools-libs", "gperftools"),
    "libmimalloc": ("libmimalloc2.0", "mimalloc", "mimalloc"),
    "libomp": ("libomp5", "libomp", "llvm-openmp"),
    "libiomp5": ("libomp5", "intel-oneapi-openmp", "intel-openmp"),
    "libatomic": ("libatomic1", "libatomic", "libgcc-ng"),
    "libnuma": ("libnuma1", "numactl-libs", "numactl"),
}


def loader_cache() -> dict[str, str]:
    """Return the loader's cache (ldconfig -p) as file name -> path; empty without ldconfig."""
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if not program:
        return {}
    try:
        result = run([program, "-p"], limit_s=20.0)
    except EnvmatrixError:
        return {}
    architecture = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(os.uname().machine, "")
    entries = [(name, path) for name, kind, path in _LDCONFIG_LINE.findall(result.stdout) if architecture in kind]
    return dict(reversed(entries))


def _library_folders() -> Iterable[Path]:
    yield from (Path(folder) for folder in _FOLDERS)
    yield Path(f"/usr/lib/{os.uname().machine}-linux-gnu")
    yield from sorted(Path("/usr/lib").glob("llvm-*/lib"), reverse=True)
    for prefix in (os.environ.get("CONDA_PREFIX"), sys.prefix):
        if prefix:
            yield Path(prefix) / "lib"


def find_system_library(file: str) -> Path | None:
    """Return this machine's library with that name or its unversioned name; None if there is none."""
    cached = loader_cache()
    for name in (file, file.split(".so")[0] + ".so"):
        if name in cached:
            return Path(cached[name])
        library_path = next((folder / name for folder in _library_folders() if (folder / name).is_file()), None)
        if library_path:
            return library_path
    return None


def install_hints(library: Library) -> str:
    """Return commands that install a library with apt, dnf and conda."""
    stems = [file.split(".so")[0] for file in library.files]
    table = [packages for start, packages in _PACKAGES.items() if any(stem.startswith(start) for stem in stems)]
    apt = [alternatives.split("|")[0].strip() for alternatives in library.apt] or [row[0] for row in table]
    dnf, conda = [row[1] for row in table], [row[2] for row in table]
    lines = [
        f"apt-get install {' '.join(dict.fromkeys(apt))}" if apt else "",
        f"dnf install {' '.join(dict.fromkeys(dnf))}" if dnf else "",
        f"conda install -c conda-forge {' '.join(dict.fromkeys(conda))}" if conda else "",
    ]
    return "install it: " + " | ".join(line for line in lines if line) if any(lines) else "install it manually"

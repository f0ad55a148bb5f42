"""NVIDIA's driver on this machine, and the CUDA builds that it supports."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: CUDA major version -> oldest driver that supports it, by minor version compatibility:
#: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html#cuda-toolkit-major-component-versions
OLDEST_DRIVERS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
_VERSION = re.compile(r"Kernel Module\D*?(?:x86_64|aarch64)?\s+(\d+)\.(\d+)(?:\.(\d+))?")


def loaded_driver(root: Path = Path("/")) -> tuple[int, ...] | None:
    """Return the version of the loaded driver; None if there is none, or if it does not say its version."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = _VERSION.search(text)
    return tuple(int(part) for part in version.groups() if part) if version else None


def driver_search_path() -> str:
    """Return the folders of LD_LIBRARY_PATH that have the driver's library: some containers have it nowhere else."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return ":".join(folder for folder in folders if folder and (Path(folder) / "libcuda.so.1").exists())


def too_old(cuda: str, root: Path = Path("/")) -> str:
    """Return why the driver cannot run a build for CUDA ``cuda`` (12.8), with both versions; '' if it can."""
    driver, oldest = loaded_driver(root), OLDEST_DRIVERS.get(int(cuda.partition(".")[0] or 0))
    if not driver or not oldest or driver >= oldest:
        return ""
    return f"a build for CUDA {cuda} needs driver {version_text(oldest)} or newer, and this is {version_text(driver)}"


def version_text(version: tuple[int, ...]) -> str:
    """Return a driver's version as NVIDIA writes it."""
    return ".".join(f"{part:02}" if index else str(part) for index, part in enumerate(version))

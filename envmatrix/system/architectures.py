"""Processor architectures: Linux's names, and the names that Debian and OCI images use."""

from __future__ import annotations

import platform

#: Linux's name (``uname -m``) -> the name in Debian packages and OCI images.
PACKAGE_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


def this_architecture() -> str:
    """Return this machine's architecture, such as x86_64 or aarch64."""
    return platform.machine()


def package_name(architecture: str) -> str:
    """Return an architecture's name in Debian packages and OCI images; others have one name everywhere."""
    return PACKAGE_NAMES.get(architecture, architecture)

"""Choose the Debian mirror for container packages: the one this machine uses, so that company mirrors work."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from envmatrix.errors import EngineError

VARIABLE = "ENVMATRIX_DEBIAN_MIRROR"
_APT = Path("/etc/apt")
_STANZA_URI = re.compile(r"^URIs:\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_LINE_URI = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+\S+\s.*\bmain\b", re.MULTILINE)


def mirrors_in(texts: Iterable[str]) -> list[str]:
    """Return the archives in apt's source files, without security archives, which are incomplete suites."""
    uris = [uri for text in texts for pattern in (_STANZA_URI, _LINE_URI) for uri in pattern.findall(text)]
    return [uri.rstrip("/") for uri in uris if "security" not in uri]


def _is_debian() -> bool:
    try:
        return platform.freedesktop_os_release().get("ID") == "debian"
    except OSError:
        return False


def debian_mirror() -> str:
    """Return $ENVMATRIX_DEBIAN_MIRROR, or this Debian machine's own mirror. Raises EngineError if there is none."""
    if configured := os.environ.get(VARIABLE):
        return configured.rstrip("/")
    files = [_APT / "sources.list", *sorted(_APT.glob("sources.list.d/*"))] if _is_debian() else []
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    mirrors = mirrors_in(texts)
    if not mirrors:
        raise EngineError(
            "no Debian mirror was found on this machine, and containers need Debian packages",
            remedy=f"set {VARIABLE} to a Debian archive (the URI in the apt sources of a Debian machine)",
        )
    return mirrors[0]

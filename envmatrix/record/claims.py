"""Check what an environment promises against what was read back inside the process."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

#: Short names of the evidence that levels claim most.
SHORT = {
    "openmp": "openmp.library",
    "malloc": "malloc.library",
    "blas": "blas.library",
    "threads": "torch.threads",
}


def lookup(evidence: Mapping[str, Any], path: str) -> Any:
    """Follow a dotted path; the longest key that fits wins, so that keys may hold dots. None when it is not there."""
    parts = SHORT.get(path, path).split(".")
    value: Any = evidence
    while parts:
        if not isinstance(value, Mapping):
            return None
        taken = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in value), None)
        if taken is None:
            return None
        value, parts = value[".".join(parts[:taken])], parts[taken:]
    return value


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_as_text, value))
    return str(value)


def _fits(text: str, pattern: str) -> bool:
    """Say whether a text is what a pattern allows: ``*`` is any text, all else (proclist=[0,1]) stands for itself."""
    return fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


def contradictions(claims: Mapping[str, tuple[str, ...]], evidence: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each claim that the evidence does not bear out; empty when all hold.

    An allowed value may hold ``*`` for any text.
    """
    wrong = []
    for path, allowed in claims.items():
        found = lookup(evidence, path)
        if found is None:
            wrong.append(f"claims {path} is {' or '.join(allowed)}, but it could not be read back")
        elif not any(_fits(_as_text(found), pattern) for pattern in allowed):
            wrong.append(f"claims {path} is {' or '.join(allowed)}, but it was {_as_text(found)}")
    return wrong

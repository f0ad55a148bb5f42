"""A table of texts that the terminal, Markdown and HTML each render."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlainTable:
    """A table of texts: ``head`` has the column names, each of ``rows`` one cell per column."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

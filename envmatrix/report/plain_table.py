"""A table that the terminal, Markdown and HTML each show in their own way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlainTable:
    """A table of texts: ``head`` names the columns, ``rows`` hold as many cells."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

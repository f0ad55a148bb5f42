"""A table of texts that the terminal, Markdown and HTML each render."""

from __future__ import annotations

from dataclasses import dataclass

from envmatrix.stats.nodes import NodeReport


@dataclass(frozen=True)
class PlainTable:
    """A table of texts: ``head`` has the column names, each of ``rows`` one cell per column."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TableSection:
    """A table with its title; ``notes`` are the sentences below it."""

    title: str
    table: PlainTable
    notes: tuple[str, ...]


def node_speed_table(node_report: NodeReport) -> PlainTable:
    """Return the table with one row per node, best first."""
    head = ("node", "baseline's speed over the mean of the nodes", "blocks")
    return PlainTable(head, tuple((row.node, f"{row.relative:.3f}", str(row.blocks)) for row in node_report.rows))

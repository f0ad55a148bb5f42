"""The table of a run's nodes."""

from __future__ import annotations

from envmatrix.report.plain_table import PlainTable
from envmatrix.stats.nodes import NodeReport


def node_table(node_report: NodeReport) -> PlainTable:
    """Return the table with one row per node, best first."""
    head = ("node", "baseline's speed over the mean of the nodes", "blocks")
    rows = ((row.node, f"{row.relative:.3f}", str(row.blocks)) for row in node_report.rows)
    return PlainTable(head, tuple(rows))

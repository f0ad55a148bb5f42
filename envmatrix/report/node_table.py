"""The nodes of a run beside each other."""

from __future__ import annotations

from envmatrix.report.plain_table import PlainTable
from envmatrix.stats.nodes import NodeReport


def node_table(node_report: NodeReport) -> PlainTable:
    """Return a row a node, the best first."""
    head = ("node", "baseline's speed over the mean of the nodes", "blocks")
    rows = ((row.node, f"{row.relative:.3f}", str(row.blocks)) for row in node_report.rows)
    return PlainTable(head, tuple(rows))

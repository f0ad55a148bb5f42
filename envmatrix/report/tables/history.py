"""The table of ``envmatrix history`` in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from envmatrix.report.formatting import format_count
from envmatrix.report.tables.history_columns import series_columns, short_run_legend
from envmatrix.stats.history import History
from envmatrix.system.printable import printable_line


def history_table(history: History) -> Table:
    """Return the table with one row per series."""
    table = Table(title=f"{format_count(history.runs, 'run')}", title_justify="left")
    columns = series_columns("terminal")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.kind == "figure" else "left",
            overflow="fold",
        )
    for series in history.series:
        table.add_row(*(Text(printable_line(column.cell(series), 120)) for column in columns))
    return table


def print_history(history: History, console: Console) -> None:
    """Print the table, and the folders that could not be read."""
    console.print(history_table(history))
    if short_note := short_run_legend(history):
        console.print(Text(short_note))
    if history.unreadable:
        names = printable_line(", ".join(history.unreadable), 200)
        console.print(Text(f"warning: no readable summary.json in {names}\n  -> envmatrix report RUN writes it"))

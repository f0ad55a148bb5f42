"""``envmatrix history`` in a terminal."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from envmatrix.printable import one_line
from envmatrix.report.formatting import NONE, count, ratio
from envmatrix.stats.history import History, Series
from envmatrix.stats.metrics import METRICS, VALUE

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


def sparkline(values: list[float], width: int = _WIDTH) -> str:
    """Return a series as bars, the newest at the right; long ones are averaged to ``width`` bars."""
    parts = np.array_split(np.array(values), min(width, len(values))) if values else []
    means = np.array([part.mean() for part in parts])
    if not means.size:
        return ""
    span = float(np.ptp(means))
    heights = (means - means.min()) / span * (len(_BARS) - 1) if span > 0 else np.full(means.size, 3)
    return "".join(_BARS[round(float(height))] for height in heights)


def _changes(series: Series) -> str:
    shown = [f"x{change.factor:.2f} since {one_line(change.run, 40)}" for change in series.changes[-3:]]
    return ", ".join(shown) or "no change"


def history_table(history: History) -> Table:
    """Return one row a series."""
    table = Table(title=f"{count(history.runs, 'run')}", title_justify="left")
    for name in ("host", "workload@engine", "environment", "runs", "latest", "speed-up", "medians", "changes"):
        table.add_column(name, justify="right" if name in {"runs", "latest", "speed-up"} else "left")
    for series in history.series:
        last = series.points[-1]
        show = METRICS.get(series.metric, VALUE).show
        cells = (
            series.host or NONE, f"{series.workload}@{series.engine}", series.environment, str(len(series.points)),
            show(last.median), ratio(last.ratio), sparkline([point.median for point in series.points]),
            _changes(series),
        )  # fmt: skip
        table.add_row(*(Text(one_line(cell, 120)) for cell in cells))
    return table


def print_history(history: History, console: Console) -> None:
    """Print the table, and which folders could not be read."""
    console.print(history_table(history))
    if history.unreadable:
        names = one_line(", ".join(history.unreadable), 200)
        console.print(Text(f"warning: no readable summary.json in {names}\n  -> envmatrix report RUN writes it"))

"""The tables of ``envmatrix atlas show`` in a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from envmatrix.report.formatting import format_bounds, format_count, format_ratio
from envmatrix.stats.atlas import Atlas, AtlasRow, table_key
from envmatrix.stats.random_effects import FEWEST_MACHINES
from envmatrix.system.printable import printable_line

#: Instruction sets that tell processors of one model apart, the widest first.
_INSTRUCTIONS = ("avx512f", "avx2", "avx", "sve", "asimd")


def print_atlas(atlas: Atlas, console: Console) -> None:
    """Print a table per workload and reference, what holds in general, and the files that cannot be used."""
    lines = [f"{format_count(atlas.runs, 'run')} of {format_count(atlas.machines, 'machine')}"]
    for _, group in itertools.groupby(atlas.rows, table_key):
        console.print(*map(Text, lines), sep="\n", soft_wrap=True)
        rows = list(group)
        console.print(_table(rows))
        lines = [*_general_lines(rows), ""]
    lines += [f"warning: left out: {printable_line(error, 400)}" for error in atlas.unreadable]
    console.print(*map(Text, lines), sep="\n", soft_wrap=True)


def _table(rows: list[AtlasRow]) -> Table:
    first = rows[0].first
    title = f"{first.workload} on {first.engine}, {first.metric}, against {first.reference}"
    table = Table(title=Text(printable_line(title, 120)), title_justify="left")
    for name in ("environment", "processor", "CPUs", "torch", "runs", "blocks", "ratio", "95 % CI", "verdict"):
        table.add_column(name, overflow="fold", justify="right" if name in ("CPUs", "runs", "blocks") else "left")
    for row in rows:
        if not row.machines:
            table.add_row(Text(printable_line(row.first.environment, 60)), "left out")
        for one in row.machines:
            effect, widest = one.effect, [name for name in _INSTRUCTIONS if name in one.machine.flags][:1]
            where = ", ".join([one.machine.model, *widest]), str(one.machine.cpus), effect.torch
            figures = format_ratio(effect.ratio), format_bounds(effect.low, effect.high)
            doubt = f": {effect.withheld}" if effect.withheld else ""
            counts = str(one.runs), str(effect.blocks)
            cells = (row.first.environment, *where, *counts, *figures, f"{effect.verdict}{doubt}")
            table.add_row(*(Text(printable_line(cell, 60)) for cell in cells))
    return table


def _general_lines(rows: list[AtlasRow]) -> Iterator[str]:
    """Yield what holds in general, a line per environment, and what cannot be said."""
    yield from (_general_line(row) for row in rows if row.general)
    if alone := [row.first.environment for row in rows if len(row.machines) == 1]:
        yield f"measured on one machine, so nothing is known about others: {printable_line(', '.join(alone))}"
    if left_out := sum(row.left_out for row in rows):
        yield f"{format_count(left_out, 'effect')} left out: other work, not verified, more failures or CPU contention"


def _general_line(row: AtlasRow) -> str:
    general, verdicts = row.general, [one.effect.verdict for one in row.machines]
    assert general is not None
    counts = [f"{verdict} on {verdicts.count(verdict)}" for verdict in ("faster", "slower") if verdict in verdicts]
    line = (
        f"{printable_line(row.first.environment, 60)}: {' and '.join(counts) or 'undecided on all'} of "
        f"{general.machines} machines; average {format_ratio(general.ratio)} (95 % CI "
        f"{format_bounds(general.low, general.high)}), spread between machines {general.spread:.1%}; "
    )
    if general.prediction is None:
        return f"{line}a prediction for another machine needs {FEWEST_MACHINES}"
    line = f"{line}on another machine {format_bounds(*general.prediction)} (95 % prediction interval)"
    return (
        line if general.covered is None else f"{line}; leaving one out: {general.covered} of {general.machines} in it"
    )

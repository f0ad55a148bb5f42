"""What ``envmatrix atlas show`` tells, as sentences and tables, and their output in a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from envmatrix.report.formatting import NONE, format_bounds, format_count, format_ratio
from envmatrix.report.tables.plain import PlainTable
from envmatrix.stats.meta_analysis.atlas import Atlas, AtlasRow, MachineEffect, table_key
from envmatrix.stats.meta_analysis.random_effects import FEWEST_MACHINES, RandomEffects
from envmatrix.stats.metrics import METRICS, THROUGHPUT
from envmatrix.system.printable import printable_line

#: Instruction sets that tell processors of one model apart, the widest first.
_INSTRUCTIONS = ("avx512f", "avx2", "avx", "sve", "asimd")
_MACHINE_HEAD = ("environment", "processor", "CPUs", "torch", "runs", "blocks", "ratio", "95 % CI", "verdict")
_GENERAL_HEAD = (
    "environment", "machines", "average", "95 % CI", "spread between machines", "on another machine (95 % prediction)",
    "leaving one out: predicted",
)  # fmt: skip


def print_atlas(atlas: Atlas, console: Console) -> None:
    """Print a table per workload and reference, what holds in general, and the files that cannot be used."""
    lines = [atlas_headline(atlas)]
    for rows in atlas_tables(atlas):
        console.print(*map(Text, lines), sep="\n", soft_wrap=True)
        console.print(_table(rows))
        lines = [*(_general_line(row) for row in rows if row.general), *exceptions(rows), ""]
    lines += [f"{signed}: {', '.join(files)}" for signed, files in signature_groups(atlas).items()]
    lines += [f"warning: left out: {printable_line(error, 400)}" for error in atlas.unreadable]
    console.print(*map(Text, lines), sep="\n", soft_wrap=True)


def atlas_headline(atlas: Atlas) -> str:
    """Return how much an atlas has."""
    return f"{format_count(atlas.runs, 'run')} of {format_count(atlas.machines, 'machine')}"


def atlas_tables(atlas: Atlas) -> list[list[AtlasRow]]:
    """Return the rows of each table: those of one workload, engine, metric and reference."""
    return [list(rows) for _, rows in itertools.groupby(atlas.rows, table_key)]


def table_title(rows: Sequence[AtlasRow]) -> str:
    """Return what the rows of a table share, on one line."""
    first = rows[0].first
    return printable_line(f"{first.workload} on {first.engine}, {first.metric}, against {first.reference}", 120)


def said(row: AtlasRow, word: str) -> str:
    """Return 'faster' or 'slower', or the equivalent for a metric that is not a speed."""
    return METRICS.get(row.first.metric, THROUGHPUT).said(word)


def signature_groups(atlas: Atlas) -> dict[str, list[str]]:
    """Return the files by what is known of their signatures; empty if nobody asked."""
    groups: dict[str, list[str]] = {}
    for file, signed in sorted(atlas.signatures.items()):
        groups.setdefault(printable_line(signed), []).append(printable_line(file))
    return groups


def machine_table(rows: Sequence[AtlasRow]) -> PlainTable:
    """Return the table with each environment on each machine."""
    return PlainTable(_MACHINE_HEAD, tuple(cells for row in rows for cells in _machine_cells(row)))


def _machine_cells(row: AtlasRow) -> Iterator[tuple[str, ...]]:
    name = row.first.environment
    if not row.machines:
        yield (name, "left out", *[""] * (len(_MACHINE_HEAD) - 2))
    for one in row.machines:
        effect, machine = one.effect, one.machine
        doubt = f": {effect.withheld}" if effect.withheld else ""
        counts = str(machine.cpus), effect.torch, str(one.runs), str(effect.blocks)
        figures = format_ratio(effect.ratio), format_bounds(effect.low, effect.high), f"{effect.verdict}{doubt}"
        yield name, processor_name(one), *counts, *figures


def processor_name(one: MachineEffect) -> str:
    """Return the model of a processor, and its widest instruction set."""
    return ", ".join([one.machine.model, *[name for name in _INSTRUCTIONS if name in one.machine.flags][:1]])


def _table(rows: Sequence[AtlasRow]) -> Table:
    table, texts = Table(title=Text(table_title(rows)), title_justify="left"), machine_table(rows)
    for name in texts.head:
        table.add_column(name, overflow="fold", justify="right" if name in ("CPUs", "runs", "blocks") else "left")
    for cells in texts.rows:
        table.add_row(*(Text(printable_line(cell, 60)) for cell in cells))
    return table


def general_table(rows: Sequence[AtlasRow]) -> PlainTable | None:
    """Return the table of averages and of the differences between machines; None if no environment has several."""
    cells = [(row.first.environment, *_general_cells(row.general)) for row in rows if row.general]
    return PlainTable(_GENERAL_HEAD, tuple(cells)) if cells else None


def _general_cells(general: RandomEffects) -> tuple[str, ...]:
    prediction = NONE if general.prediction is None else format_bounds(*general.prediction)
    covered = NONE if general.covered is None else f"{general.covered} of {general.machines}"
    average = format_ratio(general.ratio), format_bounds(general.low, general.high)
    return str(general.machines), *average, f"{general.spread:.1%}", prediction, covered


def what_holds(row: AtlasRow) -> str:
    """Return on how many of several machines an environment is faster or slower, and the range of its ratios."""
    verdicts, ratios = [one.effect.verdict for one in row.machines], [one.effect.ratio for one in row.machines]
    counts = [f"{said(row, word)} on {verdicts.count(word)}" for word in ("faster", "slower") if word in verdicts]
    numbers = f"{' and '.join(counts) or 'undecided on all'} of {format_count(len(verdicts), 'machine')}"
    return f"{numbers}, ratios {format_bounds(min(ratios), max(ratios))}"


def exceptions(rows: Sequence[AtlasRow]) -> Iterator[str]:
    """Yield what cannot be said in general, and how many effects are left out."""
    if alone := [row.first.environment for row in rows if len(row.machines) == 1]:
        yield f"measured on one machine, so nothing is known about others: {printable_line(', '.join(alone))}"
    if left_out := sum(row.left_out for row in rows):
        yield f"{format_count(left_out, 'effect')} left out: other work, not verified, more failures or CPU contention"


def _general_line(row: AtlasRow) -> str:
    general = row.general
    assert general is not None
    line = (
        f"{printable_line(row.first.environment, 60)}: {what_holds(row)}; average {format_ratio(general.ratio)} (95 % "
        f"CI {format_bounds(general.low, general.high)}), spread between machines {general.spread:.1%}; "
    )
    if general.prediction is None:
        return f"{line}a prediction for another machine needs {FEWEST_MACHINES}"
    line = f"{line}on another machine {format_bounds(*general.prediction)} (95 % prediction interval)"
    return (
        line if general.covered is None else f"{line}; leaving one out: {general.covered} of {general.machines} in it"
    )

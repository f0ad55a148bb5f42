"""The answer and the table of ``envmatrix atlas advise`` in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from envmatrix.report.formatting import NONE, format_bounds, format_count, format_ratio
from envmatrix.stats.meta_analysis.atlas_advice import Advice, Prediction
from envmatrix.stats.meta_analysis.random_effects import FEWEST_MACHINES
from envmatrix.system.printable import printable_line


def print_advice(advice: Advice, console: Console) -> None:
    """Print the answer, a table of all intervals, what cannot be told, and the next command."""
    console.print(*map(Text, _answer(advice)), sep="\n", soft_wrap=True)
    told = [one for one in advice.predictions if one.low is not None]
    if told:
        console.print(_table(told))
        console.print(Text("these are the effects of trials, which in the default design time first steps only"))
    console.print(*map(Text, _remaining_lines(advice)), sep="\n", soft_wrap=True)


def _answer(advice: Advice) -> Iterator[str]:
    machine = f"{printable_line(advice.machine.model, 60)}, {format_count(advice.machine.cpus, 'CPU')}"
    yield f"this machine ({machine}) is {'in' if advice.known else 'not in'} the atlas"
    faster = [one for one in advice.predictions if one.is_faster]
    yield from (_sentence(one) for one in faster[:1])
    if not faster and any(one.low is not None for one in advice.predictions):
        yield "nothing is known to be faster here: no interval is above 1"
    elif not faster:
        yield f"nothing can be told about this machine: a prediction needs {FEWEST_MACHINES} machines"


def _sentence(one: Prediction) -> str:
    name, work, reference = (printable_line(text, 60) for text in (one.environment, one.workload, one.reference))
    bounds = format_bounds(one.low, one.high)
    if one.measured:
        return f"{name} was {bounds} times as fast as {reference} in {work} (95 % CI, measured on this machine)"
    source = f"95 % prediction interval, from {format_count(one.machines, 'machine')}"
    return f"{name} is predicted to be {bounds} times as fast as {reference} in {work} ({source})"


def _table(told: list[Prediction]) -> Table:
    table = Table()
    for name in ("environment", "workload", "against", "ratio", "95 % interval", "known from", "leaving one out"):
        table.add_column(name, overflow="fold")
    for one in told:
        source = "this machine" if one.measured else format_count(one.machines, "machine")
        covered = NONE if one.covered is None else f"{one.covered} of {one.machines} in it"
        figures = format_ratio(one.ratio), format_bounds(one.low, one.high), source, covered
        cells = (one.environment, f"{one.workload} on {one.engine}", one.reference, *figures)
        table.add_row(*(Text(printable_line(cell, 60)) for cell in cells))
    return table


def _remaining_lines(advice: Advice) -> Iterator[str]:
    untold: dict[int, list[str]] = {}
    for one in advice.predictions:
        if one.low is None:
            untold.setdefault(one.machines, []).append(f"{one.environment} in {one.workload}")
    for machines, names in untold.items():
        measured = f"measured on {format_count(machines, 'machine')}, a prediction needs {FEWEST_MACHINES}"
        yield f"nothing can be told ({measured}): {printable_line(', '.join(names), 400)}"
    yield from (f"warning: left out: {printable_line(error, 400)}" for error in advice.unreadable)
    if advice.next:
        yield f"measure it here: {advice.next}"

"""The answer and the table of ``envmatrix atlas advise`` in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
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
        console.print(Text(_caption(told)))
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
    work += f", in {one.later} of its steps" if one.later else ""
    if one.measured:
        return f"{name} was {bounds} times as fast as {reference} in {work} (95 % CI, measured on this machine)"
    source = f"95 % prediction interval, from {format_count(one.machines, 'machine')}"
    return f"{name} is predicted to be {bounds} times as fast as {reference} in {work} ({source})"


def _caption(told: list[Prediction]) -> str:
    """Return what the figures are of, and what they are compared with."""
    references = ", ".join(dict.fromkeys(printable_line(one.reference, 60) for one in told))
    trials = "trials: the default design times first steps only"
    seconds = "seconds: later steps of processes that went on; " if any(one.later for one in told) else ""
    return f"against {references}; {seconds}{trials}"


def _table(told: list[Prediction]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    with_others = any(one.covered is not None for one in told)
    heads = ("environment", "workload", "ratio", "95 % interval", "of", "known from", "leaving one out")
    for name in heads if with_others else heads[:-1]:
        is_figure = name in ("ratio", "95 % interval")
        table.add_column(name, overflow="ellipsis" if is_figure else "fold", no_wrap=is_figure)
    for one in told:
        source = "this machine" if one.measured else format_count(one.machines, "machine")
        covered = NONE if one.covered is None else f"{one.covered} of {one.machines} in it"
        figures = format_ratio(one.ratio), format_bounds(one.low, one.high), one.later or "trials", source
        cells = (one.environment, f"{one.workload} on {one.engine}", *figures, *([covered] if with_others else []))
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

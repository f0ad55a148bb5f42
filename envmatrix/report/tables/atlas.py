"""What ``envmatrix atlas`` shows and advises, as sentences and tables, and their output in a terminal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from envmatrix.report.formatting import NONE, format_bounds, format_count, format_ratio
from envmatrix.report.tables.table_model import PlainTable
from envmatrix.results.atlas_entries import ProcessorFacts, StoredEffect
from envmatrix.stats.meta_analysis.atlas import Advice, Atlas, AtlasRow, MachineEffect, Prediction, table_identity
from envmatrix.stats.meta_analysis.random_effects import FEWEST_MACHINES, RandomEffects
from envmatrix.stats.metrics import METRICS, THROUGHPUT
from envmatrix.system.printable import printable_line

#: Instruction sets that tell processors of one model apart, the widest first.
_INSTRUCTIONS = ("avx512f", "avx2", "avx", "sve", "asimd")
#: Words of a processor's model that do not tell it from others.
_FILLER = re.compile(r"\((?:R|TM)\)| (?:CPU(?= @)|Processor|\d+-Core)\b")
_MACHINE_HEAD = ("environment", "processor", "CPUs", "torch", "runs", "blocks", "ratio", "95 % CI", "verdict")
_LATER_HEAD = ("later steps", "95 % CI, later", "verdict, later")
#: A terminal with fewer columns is narrow.
_WIDE = 100
_GENERAL_HEAD = (
    "environment", "machines", "average", "95 % CI", "spread between machines", "on another machine (95 % prediction)",
    "leaving one out: predicted",
)  # fmt: skip


def print_atlas(atlas: Atlas, console: Console) -> None:
    """Print a table per workload and reference, what holds in general, and the files that cannot be used."""
    lines = [atlas_headline(atlas)]
    for rows in atlas_tables(atlas):
        console.print(*map(Text, [*lines, table_title(rows)]), sep="\n", soft_wrap=True)
        console.print(_atlas_table(rows, console.width))
        lines = [*(_general_line(row) for row in rows if row.general), *single_machine_and_omitted_notes(rows), ""]
    lines += [f"{signed}: {', '.join(files)}" for signed, files in signature_groups(atlas).items()]
    lines += [f"warning: left out: {printable_line(error, 400)}" for error in atlas.unreadable]
    console.print(*map(Text, lines), sep="\n", soft_wrap=True)


def atlas_headline(atlas: Atlas) -> str:
    """Return how much an atlas has."""
    return f"{format_count(atlas.runs, 'run')} of {format_count(atlas.machines, 'machine')}"


def atlas_tables(atlas: Atlas) -> list[list[AtlasRow]]:
    """Return the rows of each table: those of one workload, engine, metric and reference."""
    return [list(rows) for _, rows in itertools.groupby(atlas.rows, table_identity)]


def table_title(rows: Sequence[AtlasRow]) -> str:
    """Return what the rows of a table share, on one line."""
    first = rows[0].first
    reference = first.reference.removesuffix(f":{first.workload}@{first.engine}")
    return printable_line(f"{first.workload} on {first.engine}, {first.metric}, against {reference}", 120)


def verdict_word(row: AtlasRow, word: str) -> str:
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
    head = (*_MACHINE_HEAD, *(_LATER_HEAD if any(row.later for row in rows) else ()))
    return PlainTable(head, tuple(cells for row in rows for cells in _machine_cells(row, len(head))))


def _machine_cells(row: AtlasRow, columns: int) -> Iterator[tuple[str, ...]]:
    name = row.first.environment
    if not row.machines:
        yield (name, "left out", *[""] * (columns - 2))
    for one in row.machines:
        machine = one.machine
        counts = str(machine.cpus), one.effect.torch, str(one.runs), str(one.effect.blocks)
        later = later_cells(row, machine) if columns > len(_MACHINE_HEAD) else ()
        yield name, processor_name(one), *counts, *_figures(one.effect), *later


def _figures(effect: StoredEffect) -> tuple[str, str, str]:
    doubt = f": {effect.withheld}" if effect.withheld else ""
    return format_ratio(effect.ratio), format_bounds(effect.low, effect.high), f"{effect.verdict}{doubt}"


def later_cells(row: AtlasRow, machine: ProcessorFacts) -> tuple[str, str, str]:
    """Return ratio, interval and verdict of an environment's later steps on a machine."""
    effect = row.later.find(machine) if row.later else None
    return _figures(effect) if effect else (NONE, NONE, NONE)


def machine_name(one: MachineEffect) -> str:
    """Return a short name of a machine: its CPUs and processor."""
    return f"{one.machine.cpus} x {_FILLER.sub('', processor_name(one))}"


def processor_name(one: MachineEffect) -> str:
    """Return the model of a processor, and its widest instruction set."""
    return ", ".join([one.machine.model, *[name for name in _INSTRUCTIONS if name in one.machine.flags][:1]])


def _terminal_table(heads: Sequence[str], figures: Collection[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table for a terminal, whose ``figures`` are never folded; cells beyond the heads are left out."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for head in heads:
        table.add_column(head, overflow="ellipsis" if head in figures else "fold", no_wrap=head in figures)
    for cells in rows:
        table.add_row(*(Text(printable_line(cell, 60)) for cell in cells[: len(heads)]))
    return table


def _atlas_table(rows: Sequence[AtlasRow], width: int) -> Table:
    """Return the table for a terminal; the verdict gives way to later steps if it is narrow."""
    has_later = any(row.later for row in rows)
    figures = ["ratio (95 % CI)", *(["later steps"] if has_later else [])]
    heads = ["environment", "machine", *figures, *([] if has_later and width < _WIDE else ["verdict"])]
    return _terminal_table(heads, figures, (cells for row in rows for cells in _short_cells(row, has_later=has_later)))


def _short_cells(row: AtlasRow, *, has_later: bool) -> Iterator[tuple[str, ...]]:
    name = row.first.environment
    if not row.machines:
        yield name, "left out"
    for machine in row.machines:
        *figures, verdict = _figures(machine.effect)
        later = [_pair(*later_cells(row, machine.machine)[:2])] if has_later else []
        yield name, machine_name(machine), _pair(*figures), *later, verdict
        name = ""


def _pair(ratio: str, bounds: str) -> str:
    return NONE if ratio == NONE else f"{ratio} ({bounds})"


def general_table(rows: Sequence[AtlasRow]) -> PlainTable | None:
    """Return the table of averages and of the differences between machines; None if no environment has several."""
    cells = [(row.first.environment, *_general_cells(row.general)) for row in rows if row.general]
    cells += [
        (f"{row.first.environment}, later steps", *_general_cells(row.later.general))
        for row in rows
        if row.later and row.later.general
    ]
    return PlainTable(_GENERAL_HEAD, tuple(cells)) if cells else None


def _general_cells(general: RandomEffects) -> tuple[str, ...]:
    prediction = NONE if general.prediction is None else format_bounds(*general.prediction)
    covered = NONE if general.covered is None else f"{general.covered} of {general.machines}"
    average = format_ratio(general.ratio), format_bounds(general.low, general.high)
    return str(general.machines), *average, f"{general.spread:.1%}", prediction, covered


def what_holds(row: AtlasRow) -> str:
    """Return on how many machines an environment is faster or slower, the range of its ratios, and those later."""
    verdicts, ratios = (
        [machine.effect.verdict for machine in row.machines],
        [machine.effect.ratio for machine in row.machines],
    )
    counts = [
        f"{verdict_word(row, word)} on {verdicts.count(word)}" for word in ("faster", "slower") if word in verdicts
    ]
    numbers = f"{' and '.join(counts) or 'undecided on all'} of {format_count(len(verdicts), 'machine')}"
    sentence = f"{numbers}, ratios {format_bounds(min(ratios), max(ratios))}"
    if row.later is None or not row.later.machines:
        return sentence
    if len(row.later.machines) > 1:
        return f"{sentence}; later steps: {what_holds(row.later)}"
    ratio, bounds, verdict = _figures(row.later.machines[0].effect)
    return f"{sentence}; later steps on one machine: {ratio} ({bounds}), {verdict}"


def single_machine_and_omitted_notes(rows: Sequence[AtlasRow]) -> Iterator[str]:
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


def print_advice(advice: Advice, console: Console) -> None:
    """Print the answer, a table of all intervals, what cannot be told, and the next command."""
    console.print(*map(Text, _answer(advice)), sep="\n", soft_wrap=True)
    predicted = [prediction for prediction in advice.predictions if prediction.low is not None]
    if predicted:
        console.print(_advice_table(predicted))
        console.print(Text(_caption(predicted)))
    console.print(*map(Text, _remaining_lines(advice)), sep="\n", soft_wrap=True)


def _answer(advice: Advice) -> Iterator[str]:
    machine = f"{printable_line(advice.machine.model, 60)}, {format_count(advice.machine.cpus, 'CPU')}"
    yield f"this machine ({machine}) is {'in' if advice.known else 'not in'} the atlas"
    faster = [prediction for prediction in advice.predictions if prediction.is_faster]
    yield from (_sentence(prediction) for prediction in faster[:1])
    if not faster and any(prediction.low is not None for prediction in advice.predictions):
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
    references = ", ".join(dict.fromkeys(printable_line(prediction.reference, 60) for prediction in told))
    trials = "trials: the default design times first steps only"
    seconds = "seconds: later steps of processes that went on; " if any(prediction.later for prediction in told) else ""
    return f"against {references}; {seconds}{trials}"


def _advice_table(told: list[Prediction]) -> Table:
    with_others = any(prediction.covered is not None for prediction in told)
    figures = ("ratio", "95 % interval")
    heads = ("environment", "workload", *figures, "of", "known from", *(["leaving one out"] if with_others else []))
    return _terminal_table(heads, figures, map(_advice_cells, told))


def _advice_cells(one: Prediction) -> tuple[str, ...]:
    source = "this machine" if one.measured else format_count(one.machines, "machine")
    covered = NONE if one.covered is None else f"{one.covered} of {one.machines} in it"
    figures = format_ratio(one.ratio), format_bounds(one.low, one.high)
    return one.environment, f"{one.workload} on {one.engine}", *figures, one.later or "trials", source, covered


def _remaining_lines(advice: Advice) -> Iterator[str]:
    untold: dict[int, list[str]] = {}
    for prediction in advice.predictions:
        if prediction.low is None:
            untold.setdefault(prediction.machines, []).append(f"{prediction.environment} in {prediction.workload}")
    for machines, names in untold.items():
        measured = f"measured on {format_count(machines, 'machine')}, a prediction needs {FEWEST_MACHINES}"
        yield f"nothing can be told ({measured}): {printable_line(', '.join(names), 400)}"
    yield from (f"warning: left out: {printable_line(error, 400)}" for error in advice.unreadable)
    if advice.next:
        yield f"measure it here: {advice.next}"

"""The table printed at the end of a run. It only prints to the console it is given."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from envmatrix.report.attribution import attribution_tables
from envmatrix.report.columns import Column, columns_of
from envmatrix.report.engine_table import ENGINES_NOTE
from envmatrix.report.explanation import line_of, notes_of, reasons_of, whys
from envmatrix.report.formatting import interval, ratio
from envmatrix.report.glossary import words_sentence
from envmatrix.report.group import Group
from envmatrix.report.plain_table import PlainTable
from envmatrix.report.scaling import scaling_sentence
from envmatrix.report.summary import Summary
from envmatrix.report.workload_table import WORKLOADS_NOTE
from envmatrix.results import Run
from envmatrix.stats.effects import Verdict
from envmatrix.system.printable import clean, one_line

_STYLE: Mapping[Verdict, str] = {"faster": "green", "slower": "red", "same": "", "undecided": "yellow"}
_MOST_OPERATORS = 5
#: Texts may be folded, to how much at first and at last.
_FOLDED, _LEAST = 24, 11
#: Columns up to this rank leave before texts are folded as far as can be.
_FIRST_TO_GO = 2


@dataclass(frozen=True)
class _Drawn:
    """One column as it will be printed: its heading and its cells."""

    column: Column
    head: str
    cells: tuple[Text, ...]

    def width(self, folded: int) -> int:
        longest = max(len(self.head), *(cell.cell_len for cell in self.cells))
        return min(longest, folded) if self.column.kind == "text" else longest


def _drawn(column: Column, group: Group) -> _Drawn:
    cells = [column.cell_of(row, group) for row in group.all_rows]
    texts = tuple(Text(one_line(cell.whole, 60), _STYLE[cell.verdict] if cell.verdict else "") for cell in cells)
    return _Drawn(column, column.heading(group, short=True), texts)


def _fitting(columns: list[_Drawn], width: int) -> list[_Drawn]:
    """Return the columns to show: a narrow terminal does without some until the rest fits."""
    for leaving in sorted((item.column for item in columns if item.column.gives_way), key=lambda c: c.gives_way):
        folded = _FOLDED if leaving.gives_way <= _FIRST_TO_GO else _LEAST
        if sum(item.width(folded) + 3 for item in columns) + 1 > width:
            columns = [item for item in columns if item.column is not leaving]
    return columns


def group_table(group: Group, width: int) -> Table:
    """Return one group's table, best environment first, the control last; it fits a terminal of 80 columns."""
    table = Table(title=Text(clean(group.title)), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    shown = _fitting([_drawn(column, group) for column in columns_of(group, "terminal")], width)
    for item in shown:
        if item.column.kind == "text":
            table.add_column(item.head, overflow="fold", min_width=_LEAST)
        else:
            table.add_column(item.head, justify="right" if item.column.kind == "figure" else "left", no_wrap=True)
    for row, *texts in zip(group.all_rows, *(item.cells for item in shown), strict=True):
        style = "dim" if row is group.control or row.arm.is_alone else ("bold" if row is group.best else "")
        table.add_row(*texts, style=style)
    return table


def _noise_floor(group: Group) -> str:
    effect = group.control.effect if group.control else None
    if effect is None or effect.ratio is None:
        return f"noise floor: not measured ({'no complete block of the control' if group.control else 'no control'})"
    return f"noise floor: control against {group.baseline_name} {ratio(effect.ratio)}, {interval(effect)}"


def group_lines(group: Group, run: Run | None = None) -> list[Text]:
    """Return the sentences under a group's table; ``run`` is the one of a program, whose matrix is nowhere else."""
    lines = [Text(clean(group.headline), style="bold"), Text(clean(_noise_floor(group)))]
    lines += [Text(clean(sentence)) for sentence in (*group.sentences, scaling_sentence(group)) if sentence]
    if group.best and group.best.arm.workload == group.workload:
        where = f" --run {shlex.quote(run.name)}" if run else ""
        lines.append(Text(clean(f"to use it: envmatrix export {shlex.quote(group.best.arm.environment)}{where}")))
    return lines


def _why(group: Group) -> list[RenderableType]:
    """Return the lines that say why environments are faster or slower; none if no effect is shown."""
    explained = whys(group)
    if not explained:
        return []
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", max_width=_FOLDED)
    grid.add_column(overflow="fold")
    for name, why in explained:
        grid.add_row(Text(one_line(name, 60)), Text(clean(line_of(why))))
        for reason in reasons_of(why):
            grid.add_row(Text(), Text(clean(reason), style="dim"))
    return [Text(), *(Text(note, style="italic") for note in notes_of(why for _, why in explained)), grid]


def _turned(found: PlainTable) -> PlainTable:
    """Return the table with its rows as columns."""
    columns = list(zip(found.head, *found.rows, strict=True))
    return PlainTable(columns[0], tuple(columns[1:]))


def _natural(found: PlainTable) -> int:
    columns = zip(found.head, *found.rows, strict=True)
    return 1 + sum(3 + max(map(len, column)) for column in columns)


def _widths(found: PlainTable, width: int) -> list[int]:
    """Return the columns' widths: first names and then titles are folded where the table is too wide."""
    names, *columns = zip(found.head, *found.rows, strict=True)
    first = max(map(len, names))
    bodies = [max(map(len, column[1:]), default=1) for column in columns]
    if _natural(found) > width:
        first = min(first, _FOLDED)
    room = max(0, width - 4 - first - sum(body + 3 for body in bodies)) // max(1, len(bodies))
    return [first, *(max(body, min(len(column[0]), body + room)) for body, column in zip(bodies, columns, strict=True))]


def _plain(title: str, found: PlainTable | None, width: int) -> list[RenderableType]:
    if found is None:
        return []
    found = PlainTable(
        tuple(one_line(name, 60) for name in found.head),
        tuple(tuple(one_line(cell, 60) for cell in row) for row in found.rows),
    )
    if _natural(found) > width and _natural(_turned(found)) <= width:
        found = _turned(found)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for number, (name, size) in enumerate(zip(found.head, _widths(found, width), strict=True)):
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold", max_width=size)
    for row in found.rows:
        table.add_row(*(Text(cell) for cell in row))
    return [Text(clean(title), style="italic"), table]


def _attribution(summary: Summary, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for found in attribution_tables(summary.attributions, summary.cumulative):
        parts += [*_plain(found.title, found.table, width), *(Text(clean(note)) for note in found.notes), Text()]
    return parts


def _operators(summary: Summary, width: int) -> list[RenderableType]:
    """Show the operators that cost most; report.md and report.html have more of them."""
    parts: list[RenderableType] = []
    for found in summary.operators:
        parts += [*_plain(found.title, found.table(_MOST_OPERATORS), width), Text(clean(found.note))]
    return parts


def _data_line(summary: Summary) -> list[Text]:
    if not summary.stand_in:
        return []
    return [Text(clean(f"data: {', '.join(summary.stand_in)}, a stand-in for the real data set"), style="yellow")]


def _caution_lines(summary: Summary) -> list[Text]:
    lines = []
    for item in summary.cautions:
        head = Text(clean(f"warning: {item.kind.value}: {one_line(item.about, 80)}: {item.text}"), style="yellow")
        lines += [head, Text(clean(f"  -> {item.remedy}"))]
    return [*lines, Text(words_sentence(summary), style="dim")]


def _was_looked_at(summary: Summary) -> bool:
    return any(start.steady or start.failed for start in summary.starts)


def to_renderable(summary: Summary, width: int) -> RenderableType:
    """Return everything that is printed at the end of a run, for a console of ``width`` columns."""
    parts: list[RenderableType] = []
    made = summary.run if summary.run.is_of_program else None
    for group in summary.groups:
        parts += [group_table(group, width), *group_lines(group, made), *_why(group), Text()]
    parts += [*_attribution(summary, width), *_operators(summary, width)]
    parts += [Text(clean(found.line())) for found in summary.nodes]
    own = _plain("further metrics (ratio above 1: better than the reference)", summary.own_table, width)
    engines = _plain(f"the engines. {ENGINES_NOTE}", summary.engine_table, width)
    workloads = _plain(f"the workloads. {WORKLOADS_NOTE}", summary.workload_table, width)
    begun = _plain("start and steady state", summary.start_table, width) if _was_looked_at(summary) else []
    looks = [Text(clean(text)) for text in (summary.race_sentence, summary.looks_sentence) if text]
    changes = [Text(clean(f"{change.what}: {change.text()}")) for change in summary.run.history]
    return Stack(
        *parts, *own, *engines, *workloads, *begun, *looks, *changes, *_data_line(summary), *_caution_lines(summary)
    )


def present(summary: Summary, console: Console) -> None:
    """Print the tables, the noise floor, the answer and the warnings."""
    console.print(to_renderable(summary, console.width))

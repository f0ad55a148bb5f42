"""The answer, tables and warnings printed at the end of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from envmatrix.report.attribution import attribution_sections
from envmatrix.report.explanation import PARTS_NOTE, line_of, reasons_of, whys
from envmatrix.report.formatting import format_count, format_interval, format_ratio
from envmatrix.report.group import Group, scaling_sentence, use_command
from envmatrix.report.report_data import Summary, glossary_sentence
from envmatrix.report.tables.columns import Column, columns_of
from envmatrix.report.tables.table_model import TableSection
from envmatrix.results import Run
from envmatrix.stats.effects import Verdict
from envmatrix.system.printable import printable_line, printable_text

_STYLE: Mapping[Verdict, str] = {"faster": "green", "slower": "red", "same": "", "undecided": "yellow"}
#: The columns of a table, each with its title first.
_Columns = Sequence[tuple[str, ...]]
_MOST_OPERATORS = 5
_MOST_WARNINGS = 3
#: Widths to which texts are folded at first, and at the least.
_FOLDED, _LEAST = 24, 11
#: Columns up to this rank are dropped before texts are folded to the least width.
_FIRST_TO_GO = 2


@dataclass(frozen=True)
class _PrintedColumn:
    """One column with its heading and its cells, ready to print."""

    column: Column
    head: str
    cells: tuple[Text, ...]

    def width(self, folded: int) -> int:
        longest = max(*map(len, self.head.splitlines()), *(cell.cell_len for cell in self.cells), 0)
        return min(longest, folded) if self.column.kind == "text" else longest


def _printed_column(column: Column, group: Group) -> _PrintedColumn:
    cells = [column.cell_of(row, group) for row in group.all_rows]
    texts = tuple(Text(printable_line(cell.whole, 60), _STYLE[cell.verdict] if cell.verdict else "") for cell in cells)
    return _PrintedColumn(column, column.heading(group, short=True), texts)


def _columns_that_fit(columns: list[_PrintedColumn], width: int) -> list[_PrintedColumn]:
    """Return the columns that fit into ``width``; the least important ones are dropped first."""
    for leaving in sorted((item.column for item in columns if item.column.gives_way), key=lambda c: c.gives_way):
        folded = _FOLDED if leaving.gives_way <= _FIRST_TO_GO else _LEAST
        if sum(item.width(folded) + 3 for item in columns) + 1 > width:
            columns = [item for item in columns if item.column is not leaving]
    return columns


def group_table(group: Group, width: int) -> Table:
    """Return one group's table, best environment first, the control last; it fits a terminal of 80 columns."""
    table = Table(title=Text(printable_text(group.title)), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    printed_columns = _columns_that_fit(
        [_printed_column(column, group) for column in columns_of(group, "terminal")], width
    )
    for item in printed_columns:
        if item.column.kind == "text":
            table.add_column(item.head, overflow="fold", min_width=_LEAST)
        else:
            table.add_column(item.head, justify="right" if item.column.kind == "figure" else "left", no_wrap=True)
    for row, *texts in zip(group.all_rows, *(item.cells for item in printed_columns), strict=True):
        style = (
            "dim" if row is group.control or row.arm.is_uninterrupted_copy else ("bold" if row is group.best else "")
        )
        table.add_row(*texts, style=style)
    return table


def _control_line(group: Group) -> str:
    effect = group.control.effect if group.control else None
    if effect is None or effect.ratio is None:
        return f"Control: not measured ({'no complete block of it' if group.control else 'the run has none'})."
    figures = f"{format_ratio(effect.ratio)} ({format_interval(effect)})"
    return f"The control is a second copy of {group.baseline_name}. Its true speed-up is 1; measured: {figures}."


def _answer_lines(group: Group) -> list[Text]:
    below = [Text(printable_text(group.best_set_sentence))] if group.best_set_sentence else []
    return [Text(printable_text(group.headline), style="bold"), *below]


def _lines_below(group: Group, run: Run) -> list[Text]:
    lines = [_control_line(group), *group.limits, scaling_sentence(group)]
    if group.best and group.best.arm.workload == group.workload:
        lines.insert(0, f"To use {group.best.arm.environment}: {use_command(group, run)}")
    return [Text(printable_text(line)) for line in lines if line]


def _why(group: Group) -> list[RenderableType]:
    """Return the lines that say why environments are faster or slower; none if no effect is shown."""
    explained = whys(group)
    if not explained:
        return []
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", max_width=_FOLDED)
    grid.add_column(overflow="fold")
    first_names: dict[str, str] = {}
    for name, why in explained:
        grid.add_row(Text(printable_line(name, 60)), Text(printable_text(line_of(why))))
        for reason in reasons_of(why):
            text = f"cause: as for {first_names[reason]}" if reason in first_names else reason
            grid.add_row(Text(), Text(printable_text(text), style="dim"))
            first_names.setdefault(reason, name)
    return [Text(), Text(PARTS_NOTE, style="italic"), grid]


def _natural_width(columns: _Columns) -> int:
    return 1 + sum(3 + max(map(len, column)) for column in columns)


def _column_widths(all_columns: _Columns, width: int) -> list[int]:
    """Return the widths of the columns; if the table is too wide, names are folded first, then titles."""
    names, *columns = all_columns
    name_width = max(map(len, names))
    bodies = [max(map(len, column[1:]), default=1) for column in columns]
    if _natural_width(all_columns) > width:
        name_width = min(name_width, _FOLDED)
    room = max(0, width - 4 - name_width - sum(body + 3 for body in bodies)) // max(1, len(bodies))
    return [
        name_width,
        *(max(body, min(len(column[0]), body + room)) for body, column in zip(bodies, columns, strict=True)),
    ]


def _render_section(section: TableSection, width: int) -> Iterator[RenderableType]:
    """Yield the title, the table and the notes; a table that is too wide has its rows as columns if they fit."""
    rows = [tuple(printable_line(cell, 60) for cell in row) for row in (section.table.head, *section.table.rows)]
    columns = list(zip(*rows, strict=True))
    if _natural_width(columns) > width and _natural_width(rows) <= width:
        rows, columns = columns, rows
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for number, (column, size) in enumerate(zip(columns, _column_widths(columns, width), strict=True)):
        table.add_column(Text(column[0]), justify="right" if number else "left", overflow="fold", max_width=size)
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    yield from (Text(printable_text(section.title), style="italic"), table)
    yield from (Text(printable_text(note)) for note in section.notes)


def _sections(summary: Summary, width: int) -> Iterator[RenderableType]:
    """Yield the attribution, and the most expensive operators; report.md and report.html list more of them."""
    for section in attribution_sections(summary.attributions, summary.cumulative):
        yield from _render_section(section, width)
        yield Text()
    for operators in summary.operators:
        yield from _render_section(operators.section(_MOST_OPERATORS), width)


def _further_tables(summary: Summary, width: int) -> Iterator[RenderableType]:
    for further in summary.tables.values():
        if further.in_terminal:
            yield from _render_section(TableSection(further.in_terminal, further.table, ()), width)


def _warning_lines(summary: Summary, most: int | None = None) -> list[Text]:
    """Return the warnings with their remedies, the gravest first; beyond ``most`` only how many there are."""
    lines = []
    for item in summary.cautions[:most]:
        head = f"warning ({item.kind.value}): {item.sentence}"
        lines += [Text(printable_text(head), style="yellow"), Text(printable_text(f"  -> {item.remedy}"))]
    if hidden := len(summary.cautions) - len(lines) // 2:
        command = f"envmatrix report {shlex.quote(summary.run.name)} --warnings"
        lines.append(
            Text(printable_text(f"{format_count(hidden, 'more warning')}; to read all: {command}"), style="yellow")
        )
    return [*lines, Text(glossary_sentence(summary), style="dim")]


def to_renderable(summary: Summary, width: int) -> RenderableType:
    """Return the answer, the tables and the gravest warnings of a run, for a console of ``width`` columns."""
    parts: list[RenderableType] = []
    for group in summary.groups:
        parts += [*_answer_lines(group), Text(), group_table(group, width)]
        parts += [*_lines_below(group, summary.run), *_why(group), Text()]
    closing = [summary.race_sentence, summary.looks_sentence]
    closing += [f"{change.what}: {change.text()}" for change in summary.run.history]
    return Stack(
        *parts,
        *_sections(summary, width),
        *(Text(printable_text(node_report.line())) for node_report in summary.nodes),
        *_further_tables(summary, width),
        *(Text(printable_text(text)) for text in closing if text),
        *_warning_lines(summary, _MOST_WARNINGS),
    )


def print_summary(summary: Summary, console: Console) -> None:
    """Print the answer, the tables and the gravest warnings."""
    console.print(to_renderable(summary, console.width))


def print_warnings(summary: Summary, console: Console) -> None:
    """Print every warning with its remedy."""
    console.print(Stack(*_warning_lines(summary)) if summary.cautions else "no warnings")

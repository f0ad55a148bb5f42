"""The table printed at the end of a run. It only prints to the console it is given."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from envmatrix.report.attributed import attribution_tables
from envmatrix.report.cautions import effect_note
from envmatrix.report.plain_table import PlainTable
from envmatrix.report.scaling import scaling_sentence
from envmatrix.report.summary import Group, Row, Summary, published_cells
from envmatrix.report.text import NONE, clean, interval, one_line, ratio
from envmatrix.stats.metrics import MEMORY

_STYLE = {"faster": "green", "slower": "red", "same": "", "undecided": "yellow"}
_MOST_OPERATORS = 5


def _cells(row: Row, group: Group) -> list[Text]:
    effect = row.effect
    verdict = effect.verdict if effect else "reference"
    texts = [
        row.arm.environment,
        ratio(effect.ratio) if effect else "1",
        interval(effect) if effect else "",
        verdict,
        group.metric.show(row.value) if row.value is not None else NONE,
        MEMORY.show(row.memory) if row.memory is not None else NONE,
        str(effect.blocks if effect else row.outcomes.get("ok", 0)),
        *published_cells(row, group),
        row.skipped or (effect_note(effect) if effect else ""),
    ]
    cells = [Text(one_line(text, 60)) for text in texts]
    cells[3].stylize(_STYLE.get(verdict, ""))
    return cells


def group_table(group: Group) -> Table:
    """Return one group's table, best environment first, the control last; it fits a terminal of 80 columns."""
    table = Table(title=Text(clean(group.title)), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("environment", overflow="fold", min_width=11)
    for name in ("speed-up", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in (group.metric.unit or group.metric.label, "memory", "blocks"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("accuracy", "published") if group.has_published else ():
        table.add_column(name, justify="right", no_wrap=True)
    rows = [(row, _cells(row, group)) for row in group.all_rows]
    noted = any(cells[-1].plain for _, cells in rows)
    if noted:
        table.add_column("notes", overflow="fold")
    for row, cells in rows:
        style = "dim" if row is group.control else ("bold" if row is group.best else "")
        table.add_row(*(cells if noted else cells[:-1]), style=style)
    return table


def _noise_floor(group: Group) -> str:
    effect = group.control.effect if group.control else None
    if effect is None or effect.ratio is None:
        return "noise floor: not measured (no control)"
    return f"noise floor: control against {group.baseline_name} {ratio(effect.ratio)}, {interval(effect)}"


def group_lines(group: Group) -> list[Text]:
    """Return the sentences under a group's table."""
    lines = [Text(clean(_noise_floor(group))), Text(clean(group.headline), style="bold")]
    sentence = scaling_sentence(group)
    if sentence:
        lines.append(Text(clean(sentence)))
    if group.best:
        lines.append(Text(clean(f"to use it: envmatrix export {group.best.arm.environment}")))
    return lines


def _plain(title: str, found: PlainTable | None) -> list[RenderableType]:
    if found is None:
        return []
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for number, name in enumerate(found.head):
        table.add_column(Text(one_line(name, 60)), justify="right" if number else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*(Text(one_line(cell, 60)) for cell in row))
    return [Text(clean(title), style="italic"), table]


def _attribution(summary: Summary) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for found in attribution_tables(summary.attributions, summary.ladders):
        parts += [*_plain(found.title, found.table), *(Text(clean(note)) for note in found.notes), Text()]
    return parts


def _operators(summary: Summary) -> list[RenderableType]:
    """Show the operators that cost most; report.md and report.html have more of them."""
    return [part for found in summary.operators for part in _plain(found.title, found.table(_MOST_OPERATORS))]


def _data_line(summary: Summary) -> list[Text]:
    if not summary.stand_in:
        return []
    return [Text(clean(f"data: {', '.join(summary.stand_in)}, a stand-in for the real data set"), style="yellow")]


def _caution_lines(summary: Summary) -> list[Text]:
    lines = []
    for item in summary.cautions:
        head = Text(clean(f"warning: {item.kind.value}: {one_line(item.subject, 80)}: {item.text}"), style="yellow")
        lines += [head, Text(clean(f"  -> {item.remedy}"))]
    return lines


def to_renderable(summary: Summary) -> RenderableType:
    """Return everything that is printed at the end of a run."""
    parts: list[RenderableType] = []
    for group in summary.groups:
        parts += [group_table(group), *group_lines(group), Text()]
    parts += [*_attribution(summary), *_operators(summary)]
    parts += [Text(clean(found.line())) for found in summary.nodes]
    engines = _plain("the engines, medians (ratio above 1: better than the reference)", summary.engine_table)
    workloads = _plain("the workloads, medians", summary.workload_table)
    return Stack(*parts, *engines, *workloads, *_data_line(summary), *_caution_lines(summary))


def present(summary: Summary, console: Console) -> None:
    """Print the tables, the noise floor, the best environment and the warnings."""
    console.print(to_renderable(summary))

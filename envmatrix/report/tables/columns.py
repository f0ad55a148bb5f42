"""The columns of the tables of environments; to add a column, add an entry to COLUMNS.

The terminal, report.md and report.html show ``cell``; CSV and summary.json contain ``value``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from envmatrix.report.formatting import (
    NONE,
    flags_text,
    format_bounds,
    format_interval,
    format_p_value,
    format_ratio,
    format_speed_up,
    reference_name,
)
from envmatrix.report.group import Group, Row
from envmatrix.report.headline import energy_text, interval_text, money_text, withheld_verdict_reason
from envmatrix.report.report_data import Summary
from envmatrix.stats.attribution.step_time_parts import Interval
from envmatrix.stats.effects import Effect, Flag, Verdict
from envmatrix.stats.metrics import show_bytes
from envmatrix.stats.quality.failures import BROKEN_OUTCOMES
from envmatrix.stats.step_account import PARTS

#: The smallest share of lost time that is worth a column.
_LEAST_CONTENTION = 0.05

Medium = Literal["terminal", "markdown", "html"]
Value: TypeAlias = str | bool | int | float | list[str] | None


@dataclass(frozen=True)
class Cell:
    """The text of a cell; HTML shows ``aside`` next to it, and ``verdict`` sets its colour."""

    text: str
    aside: str = ""
    verdict: Verdict | None = None

    @property
    def whole(self) -> str:
        """The text with its aside in brackets."""
        return f"{self.text} ({self.aside})" if self.aside else self.text


@dataclass(frozen=True)
class Column:
    """One column. ``name`` is its key in CSV and JSON, ``title`` its heading (empty: not in tables).

    ``value`` returns the CSV and JSON value (None: no such key). ``cell`` returns the table cell (None: the value as
    text). ``short`` is the heading for a terminal. A narrow terminal drops columns with a ``gives_way``, lowest first,
    and folds texts. ``shown`` returns whether a group has content for the column.
    """

    name: str
    title: str | Callable[[Group], str] = ""
    value: Callable[[Row, Effect], Value] | None = None
    cell: Callable[[Row, Group], Cell] | None = None
    short: str | Callable[[Group], str] = ""
    kind: Literal["figure", "word", "text"] = "figure"
    shown: Callable[[Group], bool] = lambda _group: True
    media: tuple[Medium, ...] = ("terminal", "markdown", "html")
    gives_way: int = 0

    def heading(self, group: Group, *, short: bool = False) -> str:
        """Return the heading in a group's table."""
        titles = [title(group) if callable(title) else title for title in (self.short if short else "", self.title)]
        return titles[0] or titles[1]

    def cell_of(self, row: Row, group: Group) -> Cell:
        """Return the table cell of a row."""
        if self.cell:
            return self.cell(row, group)
        value = self.value(row, row.effect) if self.value and row.effect else None
        return Cell(NONE if value is None else str(value))


def _environment(row: Row, group: Group) -> Cell:
    effect = row.effect
    if row is group.baseline and group.compares_workloads:
        return Cell(row.arm.environment, group.workload)
    if effect and effect.reference in {other.arm.name for other in group.alone}:
        return Cell(f"{row.arm.environment} *")  # a note below the table says what is compared with what
    if effect is None or group.baseline is None or effect.reference == group.baseline.arm.name:
        return Cell(row.arm.environment)
    return Cell(row.arm.environment, f"against {reference_name(effect)}")


def _of_effect(show: Callable[[Effect], str], without: str = "") -> Callable[[Row, Group], Cell]:
    """Return what shows something of a row's effect, or the text of a row ``without`` one."""
    return lambda row, _group: Cell(show(row.effect) if row.effect else without)


def _of_row(name: str, show: Callable[[float], str]) -> Callable[[Row, Group], Cell]:
    """Return what shows a number of a row, or a dash if it is not known."""

    def cell(row: Row, _group: Group) -> Cell:
        number = getattr(row, name)
        return Cell(NONE if number is None else show(number))

    return cell


def _figure(name: str, found: Callable[[Row], object]) -> Callable[[Row, Effect], Value]:
    """Return what gives an attribute of what is ``found`` of a row; None if that is nothing, or of another metric."""

    def value(row: Row, effect: Effect) -> Value:
        figure: Value = getattr(found(row), name, None) if effect.primary else None
        return figure

    return value


def _change_of_part(name: str) -> Callable[[Row], Interval | None]:
    """Return what gives the change of a part of a step."""
    return lambda row: getattr(row.why and row.why.parts.part(name), "change", None)


def _bound(ratio: float | None) -> str:
    return "" if ratio is None else format_ratio(ratio)


def _verdict(row: Row, group: Group) -> Cell:
    if row.effect is None:
        return Cell("reference")
    unproven = Flag.NOT_IN_EFFECT if Flag.NOT_IN_EFFECT in row.effect.flags else Flag.UNPROVEN
    words = {
        Flag.FAILS_MORE: ", fails more",
        Flag.REFERENCE_FAILS_MORE: ", reference fails more",
        unproven: f", {unproven.replace('-', ' ')}",
    }
    words |= {Flag.UNEQUAL_WORK: ", other work"} if row.effect.verdict == "faster" else {}
    asides = "".join(text for flag, text in words.items() if flag in row.effect.flags)
    asides = f": {withheld_verdict_reason(row.effect)}{asides}" if row.effect.withheld else asides
    return Cell(f"{group.metric.said(row.effect.verdict)}{asides}", verdict=row.effect.verdict)


def _value(row: Row, group: Group) -> Cell:
    return Cell(NONE if row.value is None else group.metric.show(row.value))


def _ratio_title(group: Group) -> str:
    ratio = "speed-up" if group.metric.is_speed else "ratio"
    return f"{ratio}, {group.steps}" if group.has_steady else ratio


def _on_two_lines(title: Callable[[Group], str]) -> Callable[[Group], str]:
    return lambda group: title(group).replace(", ", ",\n")


def _metric_title(group: Group) -> str:
    unit = group.metric.unit_beside
    return f"{group.metric.label} ({unit})" if unit else group.metric.label


def _blocks(row: Row, _group: Group) -> Cell:
    return Cell(str(row.effect.blocks if row.effect else row.outcomes.get("ok", 0)))


def _broken(row: Row) -> int:
    return sum(row.outcomes.get(name, 0) for name in BROKEN_OUTCOMES)


def _failed(row: Row, _group: Group) -> Cell:
    return Cell(f"{_broken(row)} of {_broken(row) + row.outcomes.get('ok', 0)}")


def _slow(row: Row, _group: Group) -> Cell:
    return Cell(f"{row.slow.count} of {row.slow.trials}, {row.slow.slowdown_text}" if row.slow else "")


def _steady(row: Row, group: Group) -> Cell:
    if row.steady is None:
        return Cell("" if row.effect else "1")
    steady, withheld = row.steady, row.effect.withheld if row.effect else ""
    is_held = withheld and steady.verdict == "undecided" and not steady.low <= 1.0 <= steady.high
    verdict = withheld_verdict_reason(row.effect) if row.effect and is_held else group.metric.said(steady.verdict)
    return Cell(format_ratio(steady.ratio), f"{format_bounds(steady.low, steady.high)}, {verdict}")


def _steady_title(group: Group) -> str:
    ratio = "speed-up" if group.metric.is_speed else "ratio"
    return f"{ratio}, {group.steady_range_text}"


def _if_any(condition: Callable[[Row], object]) -> Callable[[Group], bool]:
    """Return whether a condition is true of any row of a group."""
    return lambda group: any(map(condition, group.all_rows))


#: Whether any trial in a group failed; and whether any row has a published figure for comparison.
has_failed, has_reference_value = _if_any(_broken), _if_any(lambda row: row.reference_value)


def _notes(row: Row, _group: Group) -> Cell:
    return Cell(row.skipped or (flags_text(row.effect) if row.effect else ""))


def _has_notes(group: Group) -> bool:
    return any(_notes(row, group).text for row in group.all_rows)


#: In display order. Accuracy is shown next to published figures.
COLUMNS: tuple[Column, ...] = (
    Column("workload", value=lambda _, effect: effect.workload),
    Column("environment", "environment", lambda _, effect: effect.environment, _environment, kind="text"),
    Column("engine", value=lambda _, effect: effect.engine),
    Column("reference", value=lambda _, effect: effect.reference),
    Column("metric", value=lambda _, effect: effect.metric),
    Column("primary", value=lambda _, effect: effect.primary),
    Column("ratio", _ratio_title, lambda _, effect: effect.ratio,
           _of_effect(format_speed_up, "1"), _on_two_lines(_ratio_title)),
    Column("interval", "95 % CI", cell=_of_effect(format_interval)),
    Column("worst", "at worst", lambda _, effect: effect.worst, _of_effect(lambda effect: _bound(effect.worst)),
           shown=has_failed, gives_way=4),
    Column("best", "at best", lambda _, effect: effect.best, _of_effect(lambda effect: _bound(effect.best)),
           shown=_if_any(lambda row: row.effect and row.effect.best is not None), gives_way=4),
    Column("low", value=lambda _, effect: effect.low),
    Column("high", value=lambda _, effect: effect.high),
    Column("p", "adjusted p", lambda _, effect: effect.p, _of_effect(lambda effect: format_p_value(effect.p)),
           media=("html",)),
    Column("verdict", "verdict", lambda _, effect: effect.verdict, _verdict, kind="word"),
    Column("blocks", "blocks", lambda _, effect: effect.blocks, _blocks),
    Column("steady", _steady_title, cell=_steady, short=_on_two_lines(_steady_title),
           shown=lambda group: group.has_steady, gives_way=7),
    Column("withheld", value=lambda _, effect: effect.withheld or None),
    Column("median", _metric_title, cell=_value, short=lambda group: group.metric.unit_beside, gives_way=2),
    Column("cv", "cv", _figure("cv", lambda row: row), _of_row("cv", "{:.1%}".format), media=("markdown", "html")),
    Column("slow_trials", "slow trials", lambda row, effect: row.slow.count if row.slow and effect.primary else 0,
           _slow, kind="text", shown=_if_any(lambda row: row.slow), media=("markdown", "html")),
    Column("usual", value=lambda _, effect: effect.usual),
    Column("cost", "cost", cell=lambda row, _: Cell(money_text(row.cost)), shown=lambda group: group.has_cost),
    Column("cost_interval", "cost, 95 % CI", cell=lambda row, _: Cell(interval_text(row.cost)),
           shown=lambda group: group.has_cost, media=("markdown", "html")),
    Column("energy", "energy (J)", cell=lambda row, _: Cell(energy_text(row.cost)),
           shown=_if_any(lambda row: row.cost and row.cost.energy_j is not None), gives_way=4),
    Column("memory", "peak memory", cell=_of_row("memory", show_bytes), short="memory", gives_way=1),
    Column("memory_ratio", "memory ratio", media=("html",),
           cell=lambda row, _: Cell(format_ratio(row.memory_effect.ratio) if row.memory_effect else "")),
    Column("disturbed", "contention", _figure("disturbed", lambda row: row), _of_row("disturbed", "{:.0%}".format),
           shown=_if_any(lambda row: (row.disturbed or 0.0) >= _LEAST_CONTENTION), gives_way=5),
    Column("failed", "failed", lambda row, _: _broken(row), _failed, shown=has_failed),
    Column("accuracy", "accuracy", cell=_of_row("accuracy", "{:.1%}".format), shown=has_reference_value, gives_way=5),
    Column("reference_value", "published", cell=lambda row, _: Cell(row.reference_value or NONE),
           kind="text", shown=has_reference_value),
    Column("flags", "notes", lambda _, effect: list(effect.flags), _notes, kind="text", shown=_has_notes, gives_way=3),
    Column("missing_blocks", value=lambda _, effect: effect.missing),
    Column("incomplete_blocks", value=lambda _, effect: effect.incomplete),
    Column("spread", value=lambda _, effect: effect.spread),
    Column("notes", value=lambda _, effect: list(effect.notes)),
    *(
        Column(f"steady_{name}", value=_figure(name, lambda row: row.steady))
        for name in ("ratio", "low", "high", "verdict", "groups", "since_s", "until_s", "changes")
    ),
    Column("step_change_s", value=_figure("mean", lambda row: row.why and row.why.parts.whole)),
    *(
        Column(f"{part}_{end}_s", value=_figure(end, _change_of_part(part)))
        for part in PARTS for end in ("mean", "low", "high")
    ),
)  # fmt: skip


def columns_of(group: Group, medium: Medium) -> list[Column]:
    """Return the columns of a group's table in a medium."""
    return [column for column in COLUMNS if column.title and medium in column.media and column.shown(group)]


def value_names() -> list[str]:
    """Return the keys of an effect in CSV and JSON."""
    return [column.name for column in COLUMNS if column.value]


def values_of(row: Row, effect: Effect) -> dict[str, Value]:
    """Return the CSV and JSON values of one effect; unknown numbers are None."""
    values = {column.name: column.value(row, effect) for column in COLUMNS if column.value}
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def effect_values(summary: Summary) -> Iterator[tuple[Effect, Mapping[str, Value]]]:
    """Yield every effect, secondary metrics included, with its values; a ratio above 1 is better."""
    rows = {row.arm.name: row for group in summary.groups for row in group.all_rows}
    for effect in summary.analysis.effects:
        median = summary.measured.median(effect.arm, effect.metric)
        row = replace(rows[effect.arm], effect=effect, value=median)
        yield effect, values_of(row, effect)

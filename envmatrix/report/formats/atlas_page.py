"""The HTML page of ``envmatrix atlas show --output``, with a section per workload and reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from markupsafe import Markup

from envmatrix.report.figures.forest import NARROW, WIDE, ForestRow, ForestTexts, draw_forest, steady_row
from envmatrix.report.formats.html_file import page_environment, page_values
from envmatrix.report.formatting import format_bounds, format_ratio
from envmatrix.report.tables import atlas as tables
from envmatrix.stats.effects import verdict_of
from envmatrix.stats.meta_analysis.atlas import Atlas, AtlasRow, MachineEffect

#: Beyond this many machines of an environment, they are drawn without their names.
_MOST_NAMED = 30
_LAYOUTS = {"wide": replace(WIDE, right=150.0, letters=40), "narrow": replace(NARROW, letters=28)}


def _figures(number: int, rows: Sequence[AtlasRow]) -> dict[str, Markup]:
    """Return the figures of a table for a ``wide`` and a ``narrow`` screen; none if every effect is left out."""
    holds = (f"{row.first.environment}: {tables.what_holds(row)}" for row in rows if row.general)
    texts = ForestTexts(
        title=f"Each environment on each machine: {tables.table_title(rows)}",
        axis=f"ratio to {rows[0].first.reference}",
        worse=tables.verdict_word(rows[0], "slower"),
        better=tables.verdict_word(rows[0], "faster"),
        second="below them, later steps" if any(row.later for row in rows) else "",
        description="; ".join(holds) or "each environment on one machine",
    )
    drawn = [forest_row for row in rows for forest_row in _forest_rows(row)]
    layouts = _LAYOUTS if any(row.machines for row in rows) else {}
    return {
        screen: Markup(draw_forest(drawn, texts, f"{screen}{number}", layout))  # noqa: S704 - it escapes every text
        for screen, layout in layouts.items()
    }


def _changed_levels(row: AtlasRow) -> str:
    """Return the levels that differ from the reference."""
    return ", ".join(f"{factor}: {after}" for factor, (_, after) in row.first.changes.items())


def _forest_rows(row: AtlasRow) -> Iterator[ForestRow]:
    """Yield the average over machines with its prediction, if there is one, then each machine, the best first."""
    name, general = row.first.environment, row.general
    if general is None:
        yield ForestRow(name, "one machine" if row.machines else "left out", heading=True)
    else:
        interval = general.low, general.high
        words = f"{format_ratio(general.ratio)}  ({format_bounds(*interval)})"
        kind = verdict_of(*interval, 0.0)
        yield ForestRow(name, words, kind, general.ratio, interval, general.prediction, shape=3, heading=True)
    for one in sorted(row.machines, key=lambda one: -one.effect.ratio):
        yield _machine_row(one, is_thin=_has_too_many_machines_to_name(row))
        later = row.later.find(one.machine) if row.later else None
        if later and not _has_too_many_machines_to_name(row):
            yield steady_row(later)


def _has_too_many_machines_to_name(row: AtlasRow) -> bool:
    """Return whether the machines of a row are too many to name each in a figure."""
    return len(row.machines) > _MOST_NAMED


def _machine_row(one: MachineEffect, *, is_thin: bool) -> ForestRow:
    effect, name = one.effect, tables.machine_name(one)
    words = f"{format_ratio(effect.ratio)}  ({format_bounds(effect.low, effect.high)})"
    interval, hint = (effect.low, effect.high), f"{name}: {words}"
    return ForestRow(name, words, effect.verdict, effect.ratio, interval, hint=hint, thin=is_thin)


def to_html(atlas: Atlas) -> str:
    """Return the page; it has no script, and escapes all texts, which come from other people."""
    sections = [(rows, _figures(number, rows)) for number, rows in enumerate(tables.atlas_tables(atlas), 1)]
    return (
        page_environment()
        .get_template("atlas.html.j2")
        .render(
            atlas=atlas,
            tables=tables,
            sections=sections,
            levels=_changed_levels,
            is_thin=_has_too_many_machines_to_name,
            **page_values(0),
        )
    )

"""report.html: a single file that works offline. Jinja escapes everything except the generated figures."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from envmatrix.plan import shown_name
from envmatrix.plan.environment import Environment
from envmatrix.report.attribution import unproved_gain_note, waterfalls
from envmatrix.report.explanation import PARTS_NOTE, line_of, reasons_of, whys
from envmatrix.report.figures import svg
from envmatrix.report.figures.forest import NARROW, forest
from envmatrix.report.figures.heat_map import heat_map, heat_style
from envmatrix.report.figures.step_time_parts import step_time_change_bars
from envmatrix.report.figures.timeline import environment_colours, step_time_curve, timeline
from envmatrix.report.formatting import format_bounds, format_count, format_decided_ratio, format_p_value, format_ratio
from envmatrix.report.group import Group, Row, scaling_sentence, use_command
from envmatrix.report.report_data import Summary, glossary_words
from envmatrix.report.tables.columns import Column, Medium, columns_of
from envmatrix.report.tables.evidence_differences import differing_and_shared_evidence
from envmatrix.report.tables.table_model import node_speed_table
from envmatrix.stats.effects import DISQUALIFYING_FLAGS
from envmatrix.stats.inference.maxt import LEAST_UNITS
from envmatrix.stats.measurements import OUTCOMES
from envmatrix.stats.nodes import NODES_NOTE
from envmatrix.stats.observed_host import observed_host
from envmatrix.stats.quality.failures import BROKEN_OUTCOMES
from envmatrix.system.printable import printable_line, printable_text
from envmatrix.system.verdict_and_warning_terms import TOPICS

if TYPE_CHECKING:
    from jinja2 import Environment as Templates

SYMBOLS = {"faster": "▲", "slower": "▼", "same": "=", "undecided": "?"}


def _describe(row: Row, group: Group) -> str:
    """Return what an environment is: its description, or the levels and settings that the baseline does not have."""
    if row is group.control:
        return f"a second copy of {group.baseline_name}"
    basis, shared = (group.baseline.levels, group.baseline.settings) if group.baseline else ({}, ())
    levels = (f"{factor}: {level}" for factor, level in row.levels.items() if basis.get(factor) != level)
    return row.description or ", ".join((*levels, *(text for text in row.settings if text not in shared)))


def _classes(column: Column, main: frozenset[str], is_name: bool = False) -> str:
    """Return the classes of a column's cells; ``more`` is hidden until all columns are asked for."""
    kind = {"figure": "n", "text": "" if is_name else "words"}.get(column.kind, "")
    return f"{kind} {'' if column.name in main else 'more'}".strip()


def link_words(text: str, words: tuple[str, ...]) -> Markup:
    """Return a cell as markup, in which the comma-separated parts that are in ``words`` link to their explanation."""
    parts = [
        Markup('<a class="word" href="#word-{0}">{0}</a>').format(part) if part in words else escape(part)
        for part in printable_line(text).split(", ")
    ]
    return Markup(", ").join(parts)


def code_markup(text: str) -> Markup:
    """Return a sentence as markup, with text between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick: part of the text
        return escape(text)
    markup = [Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)]
    return Markup("").join(markup)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


#: Filters of the templates; most have the name of their function.
_FILTERS = {
    "clean": printable_text,
    "one_line": printable_line,
    "as_text": _as_text,
    "barred": lambda effect: not DISQUALIFYING_FLAGS.isdisjoint(effect.flags),
    "what": _describe,
    "kind": _classes,
    "use_command": lambda group, summary: use_command(group, summary.run),
    **{
        function.__name__: function
        for function in (
            *(format_bounds, format_count, format_decided_ratio, format_p_value, format_ratio, shown_name, heat_style),
            *(link_words, code_markup, unproved_gain_note, scaling_sentence, whys, line_of, reasons_of),
        )
    },
}
#: The columns that are shown at first; a switch shows the others.
_MAIN_COLUMNS = frozenset(
    {"environment", "ratio", "interval", "verdict", "median", "flags", "cost", "cost_interval", "energy"}
)
#: Further orders of a table's rows.
_ORDERS: Mapping[str, Callable[[Row], float | None]] = {
    "spread (cv)": lambda row: row.cv,
    "memory": lambda row: row.memory,
    "trials that broke": lambda row: float(sum(row.outcomes.get(name, 0) for name in BROKEN_OUTCOMES)),
}


def group_table(group: Group, medium: Medium = "html") -> dict[str, object]:
    """Return the columns with their headings, the rows with their cells, and the orders of the rows."""
    columns = columns_of(group, medium)
    return {
        "columns": [(column, column.heading(group)) for column in columns],
        "rows": [(row, [(column, column.cell_of(row, group)) for column in columns]) for row in group.all_rows],
        "orders": list(_orders(group.all_rows)),
    }


def _orders(rows: tuple[Row, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the position of each row of every order: smallest value first, unknown values last."""
    yield "speed-up", tuple(range(len(rows)))
    for name, key in _ORDERS.items():
        values = [key(row) for row in rows]
        if len(set(values)) > 1:
            ranked = sorted(range(len(rows)), key=lambda index: (values[index] is None, values[index] or 0, index))
            yield name, tuple(ranked.index(index) for index in range(len(rows)))


def page_values(kinds: int) -> dict[str, object]:
    """Return the template values that every page needs; ``kinds`` is the number of legend colours and marks."""

    def legend_mark(kind: int) -> Markup:
        return Markup(svg.marker(6, 6, kind // svg.COLOURS, 4.5))  # noqa: S704

    styles = {"palette": Markup(svg.palette()), "figure_style": Markup(svg.figure_style())}  # noqa: S704
    return {**styles, "kinds": kinds, "mark": legend_mark}


def page_environment() -> Templates:
    """Return a Jinja environment with this package's templates; it escapes everything except its own markup."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("envmatrix.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    return environment


def _settings_text(environment: Environment) -> str:
    variables = environment.variables.items()
    lines = [f"{name}={value}" if value is not None else f"# {name} is absent" for name, value in variables]
    levels = environment.levels if environment.own_levels is None else environment.own_levels
    head = [f"# {factor}: {level}" for factor, level in levels.items()]
    files = [file for _, file in environment.preload]
    return "\n".join([*head, *([f"# preload: {' '.join(files)}"] if files else []), *lines])


def _reproduce_commands(summary: Summary) -> str:
    command = summary.run.command or ("bench", summary.plan.design, "--seed", str(summary.plan.seed))
    return "\n".join(shlex.join(("envmatrix", *words)) for words in (command, ("report", summary.run.name)))


def _figures(summary: Summary) -> list[dict[str, str]]:
    """Return the figures of each group, as markup: a figure escapes every text inside it."""
    svg_texts = (
        {
            "forest": forest(group, f"f{n}"),
            "narrow": forest(group, f"n{n}", NARROW),
            "time": timeline(summary, group, f"t{n}"),
            "start": step_time_curve(summary, group, f"s{n}"),
            "why": step_time_change_bars(group, f"y{n}"),
        }
        for n, group in enumerate(summary.groups)
    )
    return [{name: Markup(text) for name, text in figures.items()} for figures in svg_texts]  # noqa: S704


def to_answer_html(summary: Summary) -> str:
    """Return the answers and tables as HTML without styles, for a page that has its own, such as a notebook."""
    tables = [group_table(group) for group in summary.groups]
    template = page_environment().get_template("answer.html.j2")
    return template.render(summary=summary, main=_MAIN_COLUMNS, symbols=SYMBOLS, tables=tables)


def to_html(summary: Summary) -> str:
    """Return report.html."""
    colours, divided = environment_colours(summary), waterfalls(summary.attributions, summary.cumulative)
    host = asdict(observed_host(summary.run.host, summary.measured))
    template = page_environment().get_template("report.html.j2")
    return template.render(
        summary=summary,
        main=_MAIN_COLUMNS,
        figures=_figures(summary),
        colours=colours,
        symbols=SYMBOLS,
        tables=[group_table(group) for group in summary.groups],
        outcome_names=OUTCOMES,
        evidence=differing_and_shared_evidence(summary),
        cancels=NODES_NOTE,
        parts_note=PARTS_NOTE,
        node_table=node_speed_table,
        attributed=[(title, Markup(figure), item) for title, figure, item in divided],  # noqa: S704
        heat=heat_map(summary),
        host={key: value for key, value in host.items() if value is not None and key != "cpu_model"},
        reproduce=_reproduce_commands(summary),
        words=glossary_words(summary),
        meanings=TOPICS,
        moderated_from=LEAST_UNITS,
        settings=[(name, _settings_text(body)) for name, body in summary.run.environments.items()],
        **page_values(len(colours)),
    )

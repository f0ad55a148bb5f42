"""report.html: one file that opens offline. Jinja escapes everything that is not a figure made here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from envmatrix.plan import shown_name
from envmatrix.plan.environment import Environment
from envmatrix.report.attribution import bars_of, steps_of, title_of, unproved, waterfall
from envmatrix.report.columns import Cell, Column, columns_of
from envmatrix.report.curve import curve
from envmatrix.report.engine_table import ENGINES_NOTE
from envmatrix.report.evidence_table import evidence_table
from envmatrix.report.explanation import line_of, notes_of, reasons_of, whys
from envmatrix.report.forest import NARROW, forest
from envmatrix.report.formatting import bounds, count, p_value, ratio, sure_ratio
from envmatrix.report.glossary import coded, linked, words_of
from envmatrix.report.group import Group, Row
from envmatrix.report.heat_map import heat_map, heat_style
from envmatrix.report.node_table import node_table
from envmatrix.report.part_bars import part_bars
from envmatrix.report.plain_table import PlainTable
from envmatrix.report.scaling import scaling_sentence
from envmatrix.report.start_table import starts_note
from envmatrix.report.summary import Summary
from envmatrix.report.svg import COLOURS, figure_style, mark, palette
from envmatrix.report.timeline import colour_of, timeline
from envmatrix.report.workload_table import WORKLOADS_NOTE
from envmatrix.stats.attribution import Attribution
from envmatrix.stats.effects import BARS
from envmatrix.stats.failures import BROKEN
from envmatrix.stats.measurements import OUTCOMES
from envmatrix.stats.moderated_variance import LEAST_UNITS
from envmatrix.stats.nodes import CANCELS
from envmatrix.stats.observed_host import seen_host
from envmatrix.system.printable import clean, one_line
from envmatrix.system.topics import TOPICS

if TYPE_CHECKING:
    from jinja2 import Environment as Templates

SYMBOLS = {"faster": "▲", "slower": "▼", "same": "=", "undecided": "?"}
_FILTERS = {
    "clean": clean, "one_line": one_line, "ratio": ratio, "p_value": p_value, "heat": heat_style,
    "bounds": bounds, "unproved": unproved, "barred": lambda effect: not BARS.isdisjoint(effect.flags),
    "linked": linked, "coded": coded, "scaled": scaling_sentence, "sure_ratio": sure_ratio,
    "shown": shown_name, "whys": whys, "why_line": line_of, "why_reasons": reasons_of,
    "why_notes": lambda found: notes_of(why for _, why in found),
}  # fmt: skip
#: Orders of a table's rows beside its own.
_ORDERS: Mapping[str, Callable[[Row], float | None]] = {
    "spread (cv)": lambda row: row.cv, "memory": lambda row: row.memory,
    "trials that broke": lambda row: float(sum(row.outcomes.get(name, 0) for name in BROKEN)),
}  # fmt: skip


@dataclass(frozen=True)
class GroupTable:
    """The table of one group: its columns with their headings, each row with its cells, and orders of the rows.

    An order is (what it is by, the place of each row); the first one is that of ``rows``.
    """

    columns: tuple[tuple[Column, str], ...]
    rows: tuple[tuple[Row, tuple[tuple[Column, Cell], ...]], ...]
    orders: tuple[tuple[str, tuple[int, ...]], ...]


def _group_table(group: Group) -> GroupTable:
    columns = columns_of(group, "html")
    rows = tuple((row, tuple((column, column.cell_of(row, group)) for column in columns)) for row in group.all_rows)
    heads = tuple((column, column.heading(group)) for column in columns)
    return GroupTable(heads, rows, tuple(_orders(group.all_rows)))


def _orders(rows: tuple[Row, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the orders in which the rows can be shown: the smallest first, what is not known last."""
    yield "speed-up", tuple(range(len(rows)))
    for name, key in _ORDERS.items():
        values = [key(row) for row in rows]
        if len(set(values)) > 1:
            ranked = sorted(range(len(rows)), key=lambda at: (values[at] is None, values[at] or 0, at))
            yield name, tuple(ranked.index(at) for at in range(len(rows)))


@dataclass(frozen=True)
class Figures:
    """The figures of one group, as markup."""

    forest: str
    narrow: str
    time: str
    start: str
    why: str


def page_values(kinds: int) -> dict[str, object]:
    """Return what every page's frame needs; ``kinds`` is the number of colours and marks in its legends."""
    from markupsafe import Markup

    def legend_mark(kind: int) -> Markup:
        return Markup(mark(6, 6, kind // COLOURS, 4.5))  # noqa: S704

    return {
        "palette": Markup(palette()), "figure_style": Markup(figure_style()), "kinds": kinds, "mark": legend_mark,  # noqa: S704
    }  # fmt: skip


def page_environment() -> Templates:
    """Return Jinja with this package's templates; it escapes everything that is not markup made here."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("envmatrix.report", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(_FILTERS)
    return environment


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def provenance(summary: Summary) -> list[tuple[str, str]]:
    """Return what is needed to judge and repeat the run, as (name, value)."""
    run = summary.run
    rows = [
        ("run", run.name), ("created", run.created), ("design", run.plan.design), ("launcher", run.launcher),
        ("seed", str(run.plan.seed)), ("matrix", run.matrix_digest), ("benchmark", run.bench_digest),
    ]  # fmt: skip
    rows += [("schedule", summary.schedule)] if summary.schedule else []
    host = {key: value for key, value in asdict(seen_host(run.host, summary.measured)).items() if value is not None}
    rows += [("processor", summary.processors)] if summary.processors else []
    rows += [(f"host {key}", _text(value)) for key, value in host.items() if key != "cpu_model"]
    rows += [(f"version of {key}", str(value)) for key, value in run.versions.items()]
    rows += [(change.what, change.text()) for change in run.history]
    return rows


def _settings(environment: Environment) -> str:
    variables = environment.variables.items()
    lines = [f"{name}={value}" if value is not None else f"# {name} is absent" for name, value in variables]
    levels = environment.levels if environment.own_levels is None else environment.own_levels
    head = [f"# {factor}: {level}" for factor, level in levels.items()]
    files = [file for _, file in environment.preload]
    return "\n".join([*head, *([f"# preload: {' '.join(files)}"] if files else []), *lines])


def _trials_line(summary: Summary) -> str:
    ok = summary.outcomes.get("ok", 0)
    blocks = len(summary.measured.blocks)
    return f"{count(summary.trials, 'trial')} in {count(blocks, 'block')}, {ok:,} ok."


def _reproduce(summary: Summary) -> str:
    said = summary.run.command or ("bench", summary.plan.design, "--seed", str(summary.plan.seed))
    return "\n".join(shlex.join(("envmatrix", *words)) for words in (said, ("report", summary.run.name)))


def _figures(summary: Summary) -> list[Figures]:
    from markupsafe import Markup  # every text inside is escaped where the figure is made

    drawn = (
        (
            forest(group, f"f{n}"),
            forest(group, f"n{n}", NARROW),
            timeline(summary, group, f"t{n}"),
            curve(summary, group, f"s{n}"),
            part_bars(group, f"y{n}"),
        )
        for n, group in enumerate(summary.groups)
    )
    return [Figures(*map(Markup, one)) for one in drawn]


def _attributed(summary: Summary) -> list[tuple[str, str, Attribution | None]]:
    """Return (title, waterfall, attribution) of each factorial and each cumulative design."""
    from markupsafe import Markup

    found: list[tuple[str, str, Attribution | None]] = []
    for number, item in enumerate(summary.attributions):
        title = title_of(item)
        figure = waterfall(bars_of(item), title, f"w{number}") if item.shares else ""
        found.append((title, Markup(figure), item))  # noqa: S704
    for number, (name, steps) in enumerate(summary.cumulative.items()):
        title = f"What each step adds: {name}"
        found.append((title, Markup(waterfall(steps_of(steps), title, f"l{number}")), None))  # noqa: S704
    return found


def _plain_tables(summary: Summary) -> list[tuple[str, str, str, PlainTable | None]]:
    """Return (id, title, caption, table)."""
    workloads = f"{WORKLOADS_NOTE} They describe the workloads; environments are compared above."
    own = "Ratios above 1 are better, whichever way the number counts."
    return [
        ("own", "Further metrics", own, summary.own_table),
        ("engines", "What the engines cost", ENGINES_NOTE, summary.engine_table),
        ("starts", "Start and steady state", starts_note(summary.start_table), summary.start_table),
        ("workloads", "Workloads", workloads, summary.workload_table),
    ]


def to_html(summary: Summary) -> str:
    """Return report.html."""
    colours = colour_of(summary)
    return page_environment().get_template("report.html.j2").render(
        summary=summary, figures=_figures(summary), colours=colours, symbols=SYMBOLS,
        tables=[_group_table(group) for group in summary.groups], outcome_names=OUTCOMES,
        evidence=evidence_table(summary), cancels=CANCELS, node_table=node_table, plain_tables=_plain_tables(summary),
        attributed=_attributed(summary), heat=heat_map(summary),
        provenance=provenance(summary), trials_line=_trials_line(summary), reproduce=_reproduce(summary),
        words=words_of(summary), meanings=TOPICS, moderated_from=LEAST_UNITS,
        settings=[(name, _settings(body)) for name, body in summary.run.environments.items()],
        **page_values(len(colours)),
    )  # fmt: skip

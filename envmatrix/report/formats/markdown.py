"""report.md: the Markdown report, for example for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envmatrix.report.attribution import attribution_sections
from envmatrix.report.explanation import PARTS_NOTE, line_of, reasons_of, whys
from envmatrix.report.formatting import NONE, format_count, markdown_cell, markdown_text
from envmatrix.report.group import Group, scaling_sentence
from envmatrix.report.summary import Summary, glossary_words
from envmatrix.report.tables.columns import columns_of, has_failed, has_reference_value
from envmatrix.report.tables.plain import TableSection, node_table
from envmatrix.stats.nodes import NODES_NOTE
from envmatrix.stats.pairing import families

_RECOMMENDED = (
    " No environment of those tied for best is significantly worse than another. The recommended one is the simplest "
    "within the margin of the best that is significantly better; its gain is corrected for that choice."
)
_NOISE = (
    "The control is a second copy of the baseline, compared with the baseline alone: its interval shows the noise. "
    "The others are compared with the mean of both. "
)
_COLUMNS = (
    " Ratios are paired by block; the value next to a ratio is the geometric mean over trials. cv is the standard "
    "deviation of an environment's trials over their mean; memory and accuracy are medians."
)
_PUBLISHED = " Published: the figures of the source, on its own machine and data."
_WORST = (
    " At worst: the lower end of the interval if every failed trial had been as slow as the longest trial of the run. "
    "At best: the upper end if every failed trial of the reference had been."
)


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table; cells are escaped only here."""
    return _join_table(head, [tuple(markdown_cell(cell) for cell in row) for row in rows])


def _join_table(head: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [*lines, *body])


def _group_section(group: Group) -> str:
    """Return the section of one group."""
    columns = columns_of(group, "markdown")
    head = tuple(column.heading(group) for column in columns)
    rows = [tuple(column.cell_of(row, group).whole for column in columns) for row in group.all_rows]
    sentence = scaling_sentence(group)
    below = f"\n{markdown_text(sentence)}\n" if sentence else ""
    answer = "\n\n".join((f"**{markdown_text(group.headline)}**", *map(markdown_text, group.sentences)))
    return f"## {markdown_cell(group.title)}\n\n{answer}\n\n{markdown_table(head, rows)}\n{below}{_why(group)}"


def _why(group: Group) -> str:
    """Return the list that says why environments are faster or slower; '' if no effect is shown."""
    lines = [
        f"* **{markdown_cell(name)}** {markdown_text('. '.join((line_of(why), *reasons_of(why))))}"
        for name, why in whys(group)
    ]
    return "\n".join(["", markdown_text(PARTS_NOTE), "", *lines, ""]) if lines else ""


def _section(section: TableSection, above: str = "") -> str:
    """Return a table with its title, the text above it, and its notes."""
    head = tuple(markdown_cell(name) for name in section.table.head)
    texts = (markdown_text(above), markdown_table(head, section.table.rows), *map(markdown_text, section.notes))
    return "\n\n".join((f"## {markdown_cell(section.title)}", *filter(None, texts))) + "\n"


def _sections(summary: Summary) -> Iterator[str]:
    """Yield the sections with further tables."""
    yield from map(_section, attribution_sections(summary.attributions, summary.cumulative))
    yield from (_section(operators.section()) for operators in summary.operators)
    for report in summary.nodes:
        title = f"Nodes: {report.workload} on {report.engine}"
        yield _section(TableSection(title, node_table(report), (NODES_NOTE,)), report.line())
    for further in summary.tables.values():
        yield _section(TableSection(further.title, further.table, (further.note,)))


def _warnings_section(summary: Summary) -> str:
    if not summary.cautions:
        return ""
    rows = [
        (item.kind.value, markdown_cell(item.about), markdown_text(item.text), markdown_text(item.remedy))
        for item in summary.cautions
    ]
    return "## Warnings\n\n" + _join_table(("warning", "about", "seen", "remedy"), rows) + "\n"


def _run_section(summary: Summary) -> str:
    run = summary.run
    data = ", ".join(summary.data) or NONE
    data += " (stand-in for the real data)" if summary.stand_in else ""
    outcomes = ", ".join(f"{number} {name}" for name, number in summary.outcomes.items()) or "none"
    rows = [
        ("run", run.name),
        ("design", run.plan.design),
        ("created", run.created),
        ("host", run.host.name or NONE),
        ("processor", summary.processors or NONE),
        ("trials", outcomes),
        ("data", data),
        ("seed", str(run.plan.seed)),
        ("matrix", run.matrix_digest),
        ("benchmark", run.bench_digest),
        *([("schedule", summary.schedule)] if summary.schedule else []),
        *((change.what, change.text()) for change in run.history),
    ]
    return "## Run\n\n" + markdown_table(("what", "value"), rows) + "\n"


def largest_family_size(summary: Summary) -> int:
    """Return the number of comparisons in the largest family with simultaneous intervals."""
    measured = {effect.arm for effect in summary.analysis.primary_effects() if effect.blocks}
    family_arms = ((*family.arms, *family.beside) for family in families(summary.plan))
    return max((sum(arm.name in measured for arm in arms) for arms in family_arms), default=0)


def _method_text(summary: Summary) -> str:
    """Return the explanation of the figures, limited to what this report has."""
    groups, comparison_count, words = summary.groups, largest_family_size(summary), glossary_words(summary)
    interval_text = (
        f" (95 %, max-t over {format_count(comparison_count, 'comparison')} at most, paired by block)"
        if comparison_count
        else ""
    )
    return "".join((
        _NOISE if any(group.control for group in groups) else "",
        f"A ratio above 1 is better. Intervals are simultaneous for all environments of one reference{interval_text}.",
        " Each table is judged on its own." if len(groups) > 1 else "",
        _COLUMNS,
        _RECOMMENDED if any(group.choice for group in groups) else "",
        _WORST if any(has_failed(group) for group in groups) else "",
        _PUBLISHED if any(has_reference_value(group) for group in groups) else "",
        *(f" {text}" for text in (summary.race_sentence, summary.looks_sentence) if text),
        f" `envmatrix docs WORD` explains {', '.join(words)}." if words else "",
    ))  # fmt: skip


def to_markdown(summary: Summary) -> str:
    """Return report.md."""
    parts = [f"# {markdown_cell(summary.run.name)}\n", *(_group_section(group) for group in summary.groups)]
    parts += [*_sections(summary), _method_text(summary) + "\n", _warnings_section(summary), _run_section(summary)]
    return "\n".join(parts)

"""report.md: the Markdown report, for example for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from envmatrix.report.attribution import attribution_sections
from envmatrix.report.explanation import PARTS_NOTE
from envmatrix.report.formats.html_file import group_table, page_environment
from envmatrix.report.formatting import markdown_cell, markdown_text
from envmatrix.report.report_data import Summary, glossary_words
from envmatrix.report.tables.columns import has_failed, has_reference_value
from envmatrix.report.tables.table_model import TableSection, node_speed_table
from envmatrix.stats.nodes import NODES_NOTE
from envmatrix.stats.pairing import families


def _sections(summary: Summary) -> Iterator[tuple[TableSection, str]]:
    """Yield the further tables, each with the text above it."""
    sections = attribution_sections(summary.attributions, summary.cumulative)
    yield from ((section, "") for section in (*sections, *(operators.section() for operators in summary.operators)))
    for report in summary.nodes:
        title = f"Nodes: {report.workload} on {report.engine}"
        yield TableSection(title, node_speed_table(report), (NODES_NOTE,)), report.line()
    yield from ((further, "") for further in summary.tables.values())


def largest_family_size(summary: Summary) -> int:
    """Return the number of comparisons in the largest family with simultaneous intervals."""
    measured = {effect.arm for effect in summary.analysis.primary_effects() if effect.blocks}
    family_arms = ((*family.arms, *family.beside) for family in families(summary.plan))
    return max((sum(arm.name in measured for arm in arms) for arms in family_arms), default=0)


def to_markdown(summary: Summary) -> str:
    """Return report.md."""
    pages = page_environment().overlay(autoescape=False, keep_trailing_newline=True)
    pages.filters |= {"cell": markdown_cell, "text": markdown_text}
    return pages.get_template("report.md.j2").render(
        summary=summary,
        tables=[group_table(group, "markdown") for group in summary.groups],
        sections=_sections(summary),
        parts_note=PARTS_NOTE,
        comparisons=largest_family_size(summary),
        failed=any(map(has_failed, summary.groups)),
        published=any(map(has_reference_value, summary.groups)),
        words=glossary_words(summary),
    )

"""A column is declared once and appears in every table."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from envmatrix.report.formats.exports import effects_csv
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import summarise
from envmatrix.report.tables import columns
from envmatrix.report.tables.columns import COLUMNS, Cell, Column, columns_of
from tests.synthetic import Machine, make_plan, write_run


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    plan = make_plan(("fast", "slow"))
    folder = tmp_path_factory.mktemp("runs") / "run"
    return summarise(write_run(folder, plan, Machine({"fast": 1.3, "slow": 0.8}), 8))


def printed(summary, width=140):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def test_a_column_added_in_one_place_stands_in_terminal_markdown_html_csv_and_json(summary, monkeypatch):
    trials = Column("trials", "trials run", lambda row, _: sum(row.outcomes.values()))
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, trials))
    assert "trials run" in printed(summary)
    assert re.search(r"^  fast .* 8  $", printed(summary), re.MULTILINE)
    markdown = to_markdown(summary)
    assert "| trials run |" in markdown
    assert re.search(r"^\| fast \|.*\| 8 \|$", markdown, re.MULTILINE)
    page = to_html(summary)
    assert '<th scope="col" class="n more">trials run</th>' in page
    assert page.count('<td class="n more" data-head="trials run">8</td>\n</tr>') == 3
    effects = list(csv.DictReader(io.StringIO(effects_csv(summary))))
    assert {effect["trials"] for effect in effects} == {"8"}
    assert {effect["trials"] for effect in summary_to_json(summary)["effects"]} == {8}


def test_a_column_can_look_different_to_people_and_be_shown_only_where_it_says_something(summary, monkeypatch):
    shown = Column("load", "load", lambda *_: 0.5, lambda *_: Cell("half", aside="so far"), shown=lambda _: True)
    hidden = Column("none", "never", lambda *_: None, shown=lambda _: False)
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, shown, hidden))
    assert "half (so far)" in to_markdown(summary)
    assert "half" in printed(summary)
    assert "never" not in to_markdown(summary) + to_html(summary) + printed(summary)


def test_every_table_has_the_columns_that_are_declared_and_no_other(summary):
    group = summary.groups[0]
    heads = {medium: [column.heading(group) for column in columns_of(group, medium)] for medium in ("markdown", "html")}
    assert f"| {' | '.join(heads['markdown'])} |" in to_markdown(summary)
    first = to_html(summary).partition("geometric mean over trials. Speed-ups")[2].partition("</thead>")[0]
    assert [html.unescape(title) for title in re.findall(r"<th[^>]*>([^<]*)</th>", first)] == heads["html"]
    reader = csv.reader(io.StringIO(effects_csv(summary)))
    keys = [column.name for column in COLUMNS if column.value]
    assert next(reader) == keys
    assert all(list(effect) == keys for effect in json.loads(json.dumps(summary_to_json(summary)))["effects"])


def test_a_narrow_terminal_leaves_out_columns_in_the_order_that_they_declare(tmp_path):
    name = "malloc-glibc-tuned+openmp-intel"
    design = {"reference_values": {name: "1.23x of a long text that says where it is from"}}
    folder = write_run(tmp_path / "run", make_plan((name,)), Machine({}, loss={name: 5.0}), 8, design=design)
    summary = summarise(folder)
    gone = [
        [title for title in ("memory", "samples/s", "notes", "accuracy") if title not in printed(summary, width)]
        for width in (160, 105, 80)
    ]
    assert gone[0] == []
    assert all(set(wide) <= set(narrow) for wide, narrow in itertools.pairwise(gone))
    assert gone[-1][:2] == ["memory", "samples/s"]


def test_a_number_that_is_none_is_not_known(summary):
    row = next(row for row in summary.groups[0].rows if row.effect)
    assert columns.values_of(row, replace(row.effect, spread=math.inf))["spread"] is None


def test_the_names_of_columns_are_unique():
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)

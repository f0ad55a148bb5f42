"""Which operators an environment made faster."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.formatting import NONE
from envmatrix.report.report_data import summarise
from envmatrix.results import RunFolder
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run, make_trials

STEPS = 5


def profile(conv_ns, other):
    operators = [{"name": "aten::convolution", "self_ns": conv_ns * STEPS}, {"name": other, "self_ns": 500_000 * STEPS}]
    return {"steps": STEPS, "phases_ns": {}, "operators": operators}


@pytest.fixture
def summary(tmp_path):
    plan = make_plan(("baseline", "fast<b>"))
    folder = RunFolder(tmp_path / "run")
    folder.create(make_run(plan), MATRIX_TEXT)
    for trial in make_trials(plan, Machine(speed={"fast<b>": 1.3}), 7):
        fast = trial.environment == "fast<b>"
        found = profile(1_000_000 if fast else 2_000_000, "aten::addmm" if fast else "aten::relu_")
        folder.append(replace(trial, document={**trial.document, "profile": found}))
    return summarise(folder)


def test_an_operator_is_compared_with_the_reference_per_step(summary):
    (table,) = summary.operators
    assert (table.reference.environment, table.table.head[-1]) == ("baseline", "fast<b>")
    convolution, relu = table.table.rows
    assert convolution == ("aten::convolution", "80.0%", "2 ms", "2.00")
    assert relu[-1] == NONE, "an operator that did not run there has no ratio"


def test_reports_show_it_and_escape_names(summary):
    for text in (to_html(summary), to_markdown(summary)):
        assert "aten::convolution" in text
        assert "fast<b>" not in text


def test_the_terminal_shows_the_costly_ones(summary):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=80, force_terminal=False))
    (row,) = [line for line in out.getvalue().splitlines() if "aten::convolution" in line]
    assert row.split() == ["aten::convolution", "80.0%", "2", "ms", "2.00"]
    assert "no intervals" in " ".join(out.getvalue().split())


def test_without_profiles_there_is_no_table(tmp_path):
    plan = make_plan(("baseline", "a"))
    folder = RunFolder(tmp_path / "run")
    folder.create(make_run(plan), MATRIX_TEXT)
    for trial in make_trials(plan, Machine(speed={}), 3):
        folder.append(replace(trial, document={**trial.document, "profile": {"steps": 0, "operators": [3, None]}}))
    assert summarise(folder).operators == ()

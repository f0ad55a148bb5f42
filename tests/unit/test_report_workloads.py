"""The table that compares a run's workloads side by side."""

from __future__ import annotations

import io

from rich.console import Console

from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import Summary, summarise
from tests.synthetic import Machine, make_plan, write_run


def summary(folder, **plan) -> Summary:
    return summarise(write_run(folder / "run", make_plan(("fast",), **plan), Machine({}), 6))


def test_two_workloads_are_shown_with_their_own_figures_in_every_report(tmp_path):
    found = summary(tmp_path, workloads=("small", "large"))
    table = found.tables["workloads"].table
    assert table is not None
    assert table.head[:2] == ("workload", "samples/s")
    assert [row[0] for row in table.rows] == ["small", "large"]
    assert "compiling" not in table.head  # no workload compiles: no empty column
    out = io.StringIO()
    print_summary(found, Console(file=out, width=100))
    for text in (out.getvalue(), to_markdown(found), to_html(found)):
        assert all(cell in text for row in table.rows for cell in row)
    assert "\nThis table describes the workloads, each in its first environment. " in out.getvalue()


def test_one_workload_needs_no_such_table(tmp_path):
    assert "workloads" not in summary(tmp_path).tables


def test_engines_are_put_side_by_side_with_the_cost_of_a_whole_trial(tmp_path):
    found = summary(tmp_path, engines=("local", "docker")).tables["engines"].table
    assert found is not None
    assert found.head == ("engine", "steady state", "start-up", "whole trial")
    assert [row[0] for row in found.rows] == ["local", "docker"]
    assert found.rows[0][1].endswith(" samples/s (reference)")
    assert "(reference)" in found.rows[0][3]
    assert " to " in found.rows[1][3]  # an interval


def test_every_report_says_what_the_baseline_of_another_engine_is_compared_with(tmp_path):
    found = summary(tmp_path, engines=("local", "docker"))
    out = io.StringIO()
    print_summary(found, Console(file=out, width=140))
    assert "against baseline on local" in to_html(found)
    for text in (out.getvalue(), to_markdown(found)):
        assert "baseline (against baseline on local)" in text


def test_one_engine_needs_no_such_table(tmp_path):
    assert "engines" not in summary(tmp_path).tables

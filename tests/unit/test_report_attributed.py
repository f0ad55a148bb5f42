"""Attribution in reports agrees with the table of environments."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from envmatrix.report.attribution import FACTORIAL_NOTE
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import summarise
from envmatrix.results import RunFolder
from tests.synthetic import MATRIX_TEXT, Machine, make_environment, make_plan, make_run, make_trials

CELLS = {"baseline": ("glibc", "gnu"), "t": ("tc", "gnu"), "i": ("glibc", "intel"), "ti": ("tc", "intel")}
LEVELS = {
    name: make_environment(name, dict(zip(("malloc", "openmp"), cell, strict=True))) for name, cell in CELLS.items()
}
SPEED = {"t": 1.25, "i": 1.1, "ti": 1.375}


def factorial(path, machine=None, blocks=8, lost=(), **more):
    """Write a run of 2 x 2 environments; ``lost`` contains (environment, block) of failed trials."""
    plan = make_plan(tuple(CELLS)[1:], **more)
    folder = RunFolder(path)
    folder.create(make_run(plan, environments=LEVELS), MATRIX_TEXT)
    for trial in make_trials(plan, machine or Machine(SPEED, noise=0.03), blocks):
        gone = (trial.environment, trial.block) in lost
        folder.append(replace(trial, outcome="failed", reason="lost", document=None) if gone else trial)
    return summarise(folder)


def printed(summary, width=80):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def whole(estimate):
    return (estimate.ratio, estimate.low, estimate.high)


@pytest.mark.parametrize(
    "lost",
    [(), {("control", 2), ("control", 5)}, {("t", 0), ("ti", 3), ("control", 4), ("baseline", 6)}],
    ids=["all trials", "controls lost", "any lost"],
)
@pytest.mark.parametrize("more", [{}, {"workloads": ("cnn", "mlp"), "engines": ("local", "docker")}], ids=["1", "2x2"])
def test_the_gain_that_is_shared_out_is_that_of_the_table(tmp_path, lost, more):
    summary = factorial(tmp_path / "run", lost=lost, **more)
    assert len(summary.attributions) == len(summary.groups)
    for item, group in zip(summary.attributions, summary.groups, strict=True):
        effect = group.best.effect
        assert item.best == "ti" == group.best.arm.environment
        assert whole(item.total) == whole(effect)
        assert math.prod(share.gain.ratio for share in item.shares) == pytest.approx(effect.ratio, rel=1e-12)
        ratios = {row.arm.environment: row.effect.ratio for row in group.rows}
        mains = {contrast.name: contrast.estimate.ratio for contrast in item.contrasts}
        assert mains["malloc=tc"] == pytest.approx(math.sqrt(ratios["t"] * ratios["ti"] / ratios["i"]))
        assert mains["malloc=tc x openmp=intel"] == pytest.approx(ratios["ti"] / ratios["t"] / ratios["i"])


@pytest.mark.parametrize("lost", [(), {("control", 2), ("a", 5)}], ids=["all trials", "some lost"])
def test_the_steps_of_a_cumulative_design_are_those_of_the_table(tmp_path, lost):
    plan = make_plan(("a", "b"), workloads=("cnn", "mlp"))
    folder = RunFolder(tmp_path / "run")
    folder.create(make_run(plan, design={"cumulative": ["a", "b"]}), MATRIX_TEXT)
    for trial in make_trials(plan, Machine({"a": 1.1, "b": 1.3}), 9):
        gone = (trial.environment, trial.block) in lost
        folder.append(replace(trial, outcome="failed", document=None) if gone else trial)
    summary = summarise(folder)
    assert set(summary.cumulative) == {"cnn on local", "mlp on local"}
    for group in summary.groups:
        first, second = summary.cumulative[f"{group.workload} on {group.engine}"]
        effects = {row.arm.environment: row.effect for row in group.rows}
        assert whole(first.so_far) == whole(effects["a"])
        assert whole(second.so_far) == whole(effects["b"])
        assert first.added.ratio * second.added.ratio == pytest.approx(effects["b"].ratio, rel=1e-12)
    text = printed(summary)
    assert "What each step adds: mlp on local" in text
    assert "What each step adds: mlp on local" in to_markdown(summary)


def test_terminal_and_markdown_show_effects_and_shares_without_wrapping(tmp_path):
    summary = factorial(tmp_path / "run", Machine({**SPEED, "ti": 1.2}, noise=0.01))
    text, markdown = printed(summary), to_markdown(summary)
    assert all(len(line) <= 80 for line in text.splitlines())
    for line in ("malloc=tc", "openmp=intel", "all of it"):
        (row,) = [found for found in text.splitlines() if found.startswith(f"  {line} ")]
        assert "(" in row
        assert f"| {line.replace('_', chr(92) + '_')} |" in markdown
    assert "malloc=tc x openmp=intel: 0.8" in text, "an interaction that is shown to be there is told"
    assert "times the product of the two" in markdown


def test_below_the_least_number_of_blocks_there_is_no_interval_anywhere(tmp_path):
    (item,) = factorial(tmp_path / "run", blocks=5, min_blocks=6).attributions
    estimates = [item.total, *(s.gain for s in item.shares), *(c.estimate for c in item.contrasts)]
    assert {(found.low, found.high) for found in estimates} == {(None, None)}


def test_one_block_a_cell_without_trials_and_a_best_baseline_still_give_reports(tmp_path):
    one = factorial(tmp_path / "one", blocks=1)
    gone = factorial(tmp_path / "gone", lost={("t", block) for block in range(8)})
    slow = factorial(tmp_path / "slow", Machine(dict.fromkeys(SPEED, 0.8)))
    for summary in (one, gone, slow):
        assert printed(summary)
        assert to_markdown(summary)
        assert to_html(summary)
    assert gone.attributions == ()
    assert "What each factor brings" in printed(slow)
    assert "What brings the gain" not in to_html(slow)


def test_an_environment_that_did_other_work_is_not_the_one_explained(tmp_path):
    summary = factorial(tmp_path / "run", Machine(SPEED, noise=0.01, loss={"ti": 0.9}))
    assert summary.attributions[0].best == "t" == summary.groups[0].best.arm.environment


def test_shares_of_a_gain_that_is_not_shown_are_called_a_guess(tmp_path):
    summary = factorial(tmp_path / "run", Machine(dict.fromkeys(SPEED, 1.01), noise=0.1))
    for text in (printed(summary), to_markdown(summary), to_html(summary)):
        assert "is not shown to gain anything: its shares are a guess" in " ".join(text.split())


def test_the_page_says_of_the_shares_what_the_other_reports_say(tmp_path):
    summary = factorial(tmp_path / "run")
    page = to_html(summary)
    assert "valid whichever environment was picked" in page
    assert "resampling" not in page
    assert FACTORIAL_NOTE in to_markdown(summary), "whole"


def test_the_environment_explained_is_the_one_recommended_although_another_measured_faster(tmp_path):
    summary = factorial(tmp_path / "run", Machine({"t": 1.25, "i": 1.0, "ti": 1.26}, noise=0.03))
    assert summary.groups[0].rows[0].arm.environment == "ti", "the fastest, but no simpler one is surely slower"
    assert summary.attributions[0].best == "t" == summary.groups[0].best.arm.environment


def test_an_environment_that_fails_more_often_is_not_the_one_explained(tmp_path):
    summary = factorial(tmp_path / "run", Machine(dict.fromkeys(("t", "i"), 1.0) | {"ti": 1.3}), lost={("ti", 3)})
    assert summary.groups[0].best is None
    assert summary.attributions[0].best != "ti"

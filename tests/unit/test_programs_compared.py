"""Programs compared in one environment (``application:``), mainly ways of parallel training."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from envmatrix.api.environment_exec_and_export import best_export_lines
from envmatrix.matrix import load
from envmatrix.matrix.model import factorial_cells
from envmatrix.plan import make_arms, shown_name
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.junit import to_junit
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import summarise_measurements
from envmatrix.stats.comparisons.environment_pairs import compare_environments
from envmatrix.stats.measurements import fold_trials
from envmatrix.system.resource_paths import bundled_matrix_file
from envmatrix.trials.experiment_setup import make_design_arms
from tests.synthetic import Machine, make_plan, make_run, make_trials

ARMS = make_arms((), ("ddp",), ("local",), "baseline", ("single", "fsdp"))
PLAN = replace(make_plan(()), arms=ARMS)
EQUAL = {"steps": 5, "losses": [2.3], "one_process_losses": [2.3], "largest_difference": 0.0, "tolerance": 2e-5}
SPREAD = {"ddp": {"parallel": "ddp", "processes": 2}, "single": {"parallel": "none"}, "fsdp": {"parallel": "fsdp"}}


SPEED = {"ddp": 1.0, "single": 1.3, "fsdp": 0.7}


def measured(options=None, equality=EQUAL):
    """Return the summary of a run in which each workload has its own options."""
    trials = []
    for trial in make_trials(PLAN, Machine({}, noise=0.02), 8):
        workload = next(arm.workload for arm in ARMS if arm.name == trial.arm)
        own = {"batch_size": 64, **SPREAD[workload], **(options or {}).get(workload, {})}
        rate = trial.document["metrics"]["samples_per_s"] * SPEED[workload]
        trials.append(replace(trial, document={
            **trial.document, "workload": {"digest": f"sha256:{own}", "options": own},
            "metrics": {**trial.document["metrics"], "samples_per_s": rate},
            "result": {**trial.document["result"], "equality": equality},
        }))  # fmt: skip
    return summarise_measurements(make_run(PLAN), fold_trials(PLAN, trials))


def test_the_fastest_way_of_training_is_named_over_the_one_that_all_are_held_against():
    summary = measured()
    group = summary.groups[0]
    assert group.headline.startswith("single is 1.")
    assert "times as fast as baseline (ddp) (95 % CI " in group.headline
    assert [(row.arm.environment, row.effect.verdict, row.effect.flags) for row in group.rows] == [
        ("single", "faster", ("stand-in-data",)), ("fsdp", "slower", ("stand-in-data",)),
    ]  # fmt: skip
    screen = io.StringIO()
    print_summary(summary, Console(file=screen, width=160))
    for told in (screen.getvalue(), to_markdown(summary)):
        assert "baseline (ddp)" in told
        assert "envmatrix export" not in told, "it is no environment"
    assert best_export_lines(None, group) == ""
    assert '>baseline <span class="soft">ddp</span></th>' in to_html(summary)


@pytest.mark.parametrize(
    ("options", "equality"),
    [({"single": {"autocast": "bfloat16"}}, EQUAL), ({"single": {"batch_size": 128}}, EQUAL), (None, None)],
)
def test_what_was_not_shown_to_train_as_the_others_do_is_other_work(options, equality):
    group = measured(options, equality).groups[0]
    assert group.headline == ("No environment is recommended over baseline (ddp): single is faster but did other work.")


def test_a_way_is_named_once_wherever_people_read_it():
    """Guards against `single:single@local` in warnings, outcomes and the output of `compare`."""
    summary = measured({"single": {"batch_size": 128}}, None)
    screen = io.StringIO()
    print_summary(summary, Console(file=screen, width=200))
    compared = compare_environments(summary.run, summary.measured, "fsdp@local", "single@local")
    texts = (screen.getvalue(), to_markdown(summary), to_html(summary), to_junit(summary), *compared.lines())
    assert [text for text in texts if "single:single" in text or "fsdp:fsdp" in text] == []
    assert "warning (unequal-work): single@local, fsdp@local:" in texts[0]
    assert '<th scope="row">single@local</th>' in texts[2]
    assert "single@local did other work than fsdp@local" in "\n".join(texts[4:])
    other = ("a:b@x", "a", "the CPU", ":@x")
    assert tuple(map(shown_name, ("a:a@x", *other))) == ("a@x", *other)


def test_every_design_that_ships_compares_something():
    for name, design in load(bundled_matrix_file()).designs.items():
        arms = make_design_arms(
            design, (*factorial_cells(design), *design.environments, *design.cumulative), design.engines
        )
        assert any(arm.reference and not arm.is_control for arm in arms), name

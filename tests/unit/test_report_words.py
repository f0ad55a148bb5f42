"""Sentences of a report never exceed its data: equal or similar environments, no data, numbers that are not speeds."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from envmatrix.matrix.metric_sources import MetricSource
from envmatrix.matrix.model import Workload
from envmatrix.report.attribution import FACTORIAL_NOTE, MAIN_NOTE, attribution_title
from envmatrix.report.figures.forest import forest
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.formatting import (
    NONE,
    format_bounds,
    format_decided_ratio,
    format_ratio,
    format_speed_up,
    list_numbers,
)
from envmatrix.report.report_data import summarise_measurements
from envmatrix.report.tables.columns import columns_of
from envmatrix.report.warning import RunWarning, WarningKind, merge_warnings_by_cause
from envmatrix.runner.reproduction.reproduced_effects import compare_reproduction
from envmatrix.stats.best_environment import Choice
from envmatrix.stats.comparisons.environment_pairs import compare_environments
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.metrics import MEMORY, METRICS, THROUGHPUT, VALUE
from envmatrix.stats.nodes import NodeReport, NodeRow
from envmatrix.stats.quality.slow_trials import SlowTrials
from envmatrix.stats.stopping.racing import next_arms
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run
from tests.unit.test_report_attributed import factorial

FAST = make_plan(("fast",))


def told(plan, machine, blocks=10, change=lambda trial: trial, **run):
    trials = [change(trial) for trial in make_trials(plan, machine, blocks)]
    return summarise_measurements(make_run(plan, **run), fold_trials(plan, trials))


def printed(summary):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200, force_terminal=False))
    return out.getvalue()


def everywhere(summary):
    return printed(summary), to_markdown(summary), to_html(summary)


def test_the_page_says_of_undecided_what_to_do():
    page = to_html(told(make_plan(("close",)), Machine({"close": 1.02}, noise=0.1), name="mine"))
    assert "<code>envmatrix resume mine</code> and a larger <code>--budget</code>" in page
    assert "envmatrix docs undecided" in page


def test_of_equally_simple_ones_none_is_called_the_simplest():
    group = told(make_plan(("a", "b", "slow")), Machine({"a": 1.3, "b": 1.3, "slow": 0.8}, noise=0.02)).groups[0]
    assert set(group.best_set) == {"a", "b"}
    other = "ab".replace(group.best.arm.environment, "")
    assert group.best_set_sentence == f"Perhaps as good: {other} (no significant difference)."


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        (
            Choice("fast:cnn@local", 1.2, ("fast:cnn@local", "b:cnn@local"), 1, 1),
            "the only one that is significantly faster",
        ),
        (
            Choice("fast:cnn@local", 1.2, ("fast:cnn@local", "b:cnn@local"), 2, 1, near=2),
            "the one with the fewest changed settings among those within 3 % of the fastest",
        ),
        (
            Choice("fast:cnn@local", 1.2, ("fast:cnn@local", "b:cnn@local"), 3, 2, near=3),
            "the one with the fewest changed settings among those within 3 % of the fastest",
        ),
        (
            Choice("fast:cnn@local", 1.2, ("fast:cnn@local", "b:cnn@local"), 2, 1, near=1),
            "the best measured of the 2 that are significantly faster.",
        ),
    ],
)
def test_why_one_of_a_best_set_is_recommended_is_said_as_it_is(choice, why):
    group = replace(told(make_plan(("fast", "b")), Machine({"fast": 1.2, "b": 1.4})).groups[0], choice=choice)
    assert f"Recommended: fast, {why}" in group.best_set_sentence
    if "fewest" in why:
        best = replace(group, rows=group.rows[::-1])
        assert best.best_set_sentence == "Perhaps as good: b (no significant difference).", "it measured best"


def test_a_recommended_one_that_another_surely_beats_is_not_said_to_be_like_it():
    plan = make_plan(("fast", "b"))
    choice = Choice("fast:cnn@local", 1.1, ("b:cnn@local",), 1, 1, outdone=True)
    group = replace(told(plan, Machine({"fast": 1.1, "b": 1.4})).groups[0], choice=choice)
    said = group.best_set_sentence
    assert "tied" not in said
    assert said.startswith("b measured better, but not significantly faster than the reference. Recommended: fast, ")


def test_no_gain_is_written_as_none_or_as_less_than_its_own_bound():
    group = told(FAST, Machine({"fast": 1.2})).groups[0]
    (row,) = group.rows
    effect = replace(row.effect, ratio=1.004, low=1.0003, high=1.04)
    near = replace(group, rows=(replace(row, effect=effect),), choice=replace(group.choice, gain=1.0021))
    assert near.headline.startswith("fast is 1.004 times as fast as baseline")
    assert "Allowing for luck, expect about 1.002 rather than 1.004." in near.headline
    assert "95 % CI 1.0003 to 1.04" in near.headline
    assert format_speed_up(effect) == "1.004"
    assert format_speed_up(replace(effect, low=0.99)) == "1.00" == format_ratio(1.004), "nothing is claimed of it"
    assert [format_decided_ratio(value) for value in (0.99996, 1.0, None, 1.31)] == ["0.99996", "1.00", NONE, "1.31"]


def test_a_run_of_the_baseline_alone_says_that_nothing_was_compared_and_explains_no_best_set():
    summary = told(make_plan(()), Machine({}))
    assert summary.groups[0].headline == "Nothing was compared with baseline."
    text = to_markdown(summary)
    assert "tied for best" not in text
    assert "At worst" not in text
    assert all(everywhere(summary))
    assert "tied for best" in to_markdown(told(FAST, Machine({"fast": 1.2})))


def test_one_that_is_called_faster_and_left_a_race_is_said_to_have_left_it():
    group = replace(told(FAST, Machine({"fast": 1.2})).groups[0], choice=None)
    assert group.rows[0].effect.verdict == "faster"
    assert group.headline == (
        "No environment is recommended over baseline: fast was dropped from the race, as another was surely better."
    )


def test_who_left_a_race_is_told_in_every_report():
    plan = make_plan(("best", "worst"), race=True)
    summary = told(plan, Machine({"best": 1.4, "worst": 0.7}, noise=0.01), 7)
    assert "worst after 6 blocks (not the best)" in summary.race_sentence
    assert all("after 6 blocks" in text for text in everywhere(summary))
    assert told(FAST, Machine({})).race_sentence == ""


def test_one_that_was_not_seen_to_be_what_its_name_says_sends_nobody_out_of_a_race():
    plan = make_plan(("best", "worst", "twin"), max_blocks=40)
    trials = list(make_trials(plan, Machine({"best": 3.0, "worst": 1.2, "twin": 1.2}, noise=0.01), 20))
    unseen = [replace(trial, unproven=("?",)) if trial.environment == "best" else trial for trial in trials]
    lost = {item.arm for item in next_arms(plan, fold_trials(plan, trials)).stopped if item.reason == "not the best"}
    assert lost >= {"worst:cnn@local", "twin:cnn@local"}
    stays = next_arms(plan, fold_trials(plan, unseen))
    assert {item.arm for item in stays.stopped if item.reason == "not the best"} == set()


def of_program(trial):
    metrics = trial.document["metrics"]
    kept = {key: value for key, value in trial.document.items() if key not in ("data", "result")}
    more = [{"name": "score", "value": metrics["samples_per_s"], "better": "higher"}]
    return replace(
        trial, document={**kept, "metrics": {**metrics, "value": metrics["samples_per_s"]}, "more_metrics": more}
    )


def program(**metrics):
    return Workload.model_validate({"name": "cnn", "command": ["python", "train.py"], "metrics": metrics})


def test_what_is_no_speed_is_called_better_and_never_faster():
    accurate = program(accuracy={"regex": "a ([0-9.]+)"}, score={"regex": "s ([0-9.]+)", "unit": "points"})
    summary = told(make_plan(("fast", "bad")), Machine({"fast": 1.3, "bad": 0.7}, noise=0.01), 10, of_program,
                   workloads={"cnn": accurate})  # fmt: skip
    group = summary.groups[0]
    assert " times as good as baseline in accuracy (95 % CI " in group.headline
    for text in (*everywhere(summary), forest(group)):
        assert "better" in text
        assert "worse" in text
    assert "faster" not in printed(summary)
    assert ">faster<" not in forest(group)
    found = compare_environments(summary.run, summary.measured, "baseline", "bad")
    assert "times as good as baseline in accuracy (95 % CI " in found.lines()[0]
    assert found.lines()[0].endswith(", worse): worse")
    none = told(FAST, Machine({}), 10, of_program, workloads={"cnn": accurate})
    assert "No environment is significantly better than baseline." in none.groups[0].headline


@pytest.mark.parametrize(
    ("unit", "label", "fast"),
    [
        ("s", "wall time", True), ("images/s", "x", True), ("ms", "latency", True), ("req / second", "x", True),
        ("fps", "x", True), ("GFLOPS", "x", True), ("", "reported value", True), ("", "accuracy", False),
        ("B", "memory", False), ("points", "x", False), ("%", "accuracy", False), ("J", "energy", False),
        ("", "throughput", True), ("", "tokens_per_s", True), ("", "GFLOPS", True), ("", "step time", True),
        ("", "rate", True), ("", "error rate", False), ("", "times wrong", False),
    ],
)  # fmt: skip
def test_a_speed_is_a_time_or_a_rate_or_the_one_number_by_which_a_program_says_how_fast_it_was(unit, label, fast):
    assert replace(VALUE, unit=unit, label=label).is_speed is fast
    assert (THROUGHPUT.is_speed, METRICS["training_s"].is_speed, MEMORY.is_speed) == (True, True, False)


@pytest.mark.parametrize(
    ("metric", "heading"),
    [
        ({"regex": "throughput: ([0-9.]+)", "unit": "images/s"}, "throughput (images/s)"),
        ({"regex": "throughput: ([0-9.]+)"}, "throughput"),
        ({"regex": "([0-9.]+) images/s", "unit": "images/s"}, "throughput (images/s)"),
        ({"json_file": "out.json:stats.ops"}, "ops"),
        ({"regex": "([0-9.]+)"}, "reported value"),
    ],
)
def test_a_number_of_a_program_is_called_what_the_program_calls_it(metric, heading):
    """Guards against the heading "reported value" for every number."""
    mine = Workload(name="cnn", command=("python", "train.py"), metric=MetricSource.model_validate(metric))
    summary = told(FAST, Machine({"fast": 1.3}, noise=0.01), 10, of_program, workloads={"cnn": mine})
    group = summary.groups[0]
    columns = {column.name: column.heading(group) for column in columns_of(group, "html")}
    assert (columns["median"], columns["ratio"]) == (heading, "speed-up")
    assert f" | {heading} | " in to_markdown(summary)


@pytest.mark.parametrize(
    ("metric", "short", "heading"),
    [
        (METRICS["trial_s"], "whole trial", "whole trial"),
        (replace(MEMORY, label="memory of GPUs"), "memory of GPUs", "memory of GPUs"),
        (THROUGHPUT, "samples/s", "throughput (samples/s)"),
        (replace(VALUE, label="step time", unit="ms"), "ms", "step time (ms)"),
    ],
)
def test_a_column_has_no_unit_in_its_heading_if_each_number_has_one(metric, short, heading):
    """Guards against "1.6 ms" under "s"."""
    group = replace(told(FAST, Machine({"fast": 1.3}, noise=0.01), 10).groups[0], metric=metric)
    (column,) = (column for column in columns_of(group, "terminal") if column.name == "median")
    assert (column.heading(group, short=True), column.heading(group)) == (short, heading)


def test_a_heat_map_shows_other_work_as_no_gain():
    plan = make_plan(("cheat",), workloads=("cnn", "mlp"))
    page = to_html(told(plan, Machine({"cheat": 1.5}, noise=0.01, loss={"cheat": 5.0})))
    cell = next(line for line in page.splitlines() if '<th scope="row">cheat</th><td' in line)
    assert cell.count("†") == 2
    assert "font-weight" not in cell
    assert "--good" not in cell
    assert '<g class="faster">' not in page, "nor is its bar green in the figure"
    honest = to_html(told(plan, Machine({"cheat": 1.5}, noise=0.01)))
    assert "font-weight" in next(line for line in honest.splitlines() if '<th scope="row">cheat</th><td' in line)


def test_nodes_that_may_be_alike_are_not_said_to_differ_more_than_noise():
    rows = (NodeRow("n1", 4, 1.02), NodeRow("n2", 4, 0.98))
    said = NodeReport("cnn", "local", rows, 0.04, {}).line()
    assert said.startswith(
        "2 nodes differ by 4.0% in the baseline of cnn@local: n1 was fastest, n2 slowest. A temporary slow-down"
    )


def test_a_slow_down_within_the_margin_is_said_to_be_one():
    plan = make_plan(("old", "new"))
    run, measured = make_run(plan), fold_trials(plan, make_trials(plan, Machine({"new": 0.985}, noise=0.003), 20))
    (item,) = compare_environments(run, measured, "old", "new").items
    assert (item.status, item.verdict) == ("slower", "same")
    assert item.line().endswith("slower, but within the design's margin, so its verdict is same")
    (item,) = compare_environments(run, measured, "old", "new", 0.0025).items
    assert "slower by more than 0.25%" in item.line()


def test_what_a_reproduction_of_other_work_shows_is_said_to_be_of_other_work(tmp_path):
    folders = [write_run(tmp_path / name, FAST, Machine({"fast": 1.2}, loss={"fast": 5.0}), 8) for name in ("a", "b")]
    said = compare_reproduction(tuple(folders), {}, {}, 0.05).cautions
    assert [text for text in said if "did not do the same work as its reference: final loss 5" in text]


def test_shares_are_explained_only_where_there_are_some(tmp_path):
    slow = factorial(tmp_path / "slow", Machine(dict.fromkeys(("t", "i", "ti"), 0.8)))
    assert MAIN_NOTE in to_markdown(slow)
    assert FACTORIAL_NOTE not in to_markdown(slow)
    vague = factorial(tmp_path / "vague", Machine({"t": 1.01, "i": 1.01, "ti": 1.02}, noise=0.1))
    assert attribution_title(vague.attributions[0]).startswith("What might bring a gain of ")


def test_many_looks_are_told_in_short():
    assert (list_numbers([6]), list_numbers([6, 9]), list_numbers([6, 9, 12])) == ("6", "6 and 9", "6, 9 and 12")
    assert list_numbers(range(6, 60)) == "6, 7, 8, 50 more and 59"


def test_slow_trials_are_slower_by_more_than_nothing_and_of_no_speed_they_are_worse():
    assert str(SlowTrials(3, 24, 0.25)) == "3 of 24 trials are 25% slower"
    assert str(SlowTrials(1, 24, 0.004)) == "1 of 24 trials is 0.4% slower"
    assert str(SlowTrials(3, 24, 0.25, is_speed=False)) == "3 of 24 trials are 25% worse"


@pytest.mark.parametrize(
    ("gone", "headline"),
    [
        (("a", "b"), "No result: no trial of a, b succeeded."),
        (("baseline", "control"), "Nothing can be compared with baseline: none of its trials succeeded."),
        (("a",), "No environment is significantly faster than baseline."),
    ],
)
def test_where_trials_failed_it_is_not_said_that_too_little_was_measured(gone, headline):
    def lost(trial):
        broke = replace(trial, outcome="failed", reason="lost", document=None)
        return broke if trial.environment in gone else trial

    summary = told(make_plan(("a", "b")), Machine({}), 8, lost)
    assert summary.groups[0].headline == headline
    floor = "Control: not measured (no complete block of it)."
    assert (floor in printed(summary)) is ("control" in gone)


def test_what_is_surely_faster_by_less_than_the_margin_is_not_said_to_be_shown_nowhere():
    summary = told(make_plan(("a", "b")), Machine({"a": 1.006, "b": 1.0}, noise=0.001), 30)
    (group,) = summary.groups
    assert [row.effect.verdict for row in group.rows] == ["same", "same"]
    assert group.headline == (
        "No environment is recommended over baseline: a is significantly faster, but by less than the margin of 3 %."
    )


def test_an_interval_far_beyond_a_factor_of_a_hundred_has_both_its_ends():
    assert (format_bounds(144.2, 158.4), format_bounds(0.0039, 0.0041), format_bounds(90.0, 300.0)) == (
        "144 to 158", "0.0039 to 0.0041", "90.00 to >100",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0281, 1.0342, "1.028 to 1.034"),
        (1.03001, 1.03002, "1.03001 to 1.03002"),
        (1.02, 1.03, "1.02 to 1.03"),
        (1.0001, 1.0002, "1.0001 to 1.0002"),
        (144.21, 144.4, "144.2 to 144.4"),
        (1.03, 1.03, "1.03 to 1.03"),
    ],
)
def test_an_interval_narrower_than_its_last_digit_has_another(low, high, text):
    assert format_bounds(low, high) == text
    (row,) = told(FAST, Machine({"fast": 1.2})).groups[0].rows
    ratio = (low + high) / 2
    shown = format_speed_up(replace(row.effect, ratio=ratio, low=low, high=high))
    digits = len(text.split()[0].partition(".")[2])
    assert shown == f"{ratio:.{digits}f}"


def test_the_terminal_has_the_three_gravest_warnings_and_the_command_for_the_others():
    summary = told(FAST, Machine({"fast": 1.2}))
    kinds = (WarningKind.DRIFT, WarningKind.FAILED, WarningKind.SHORT_RUN, WarningKind.UNEQUAL_WORK, WarningKind.STEAL)
    cautions = merge_warnings_by_cause(RunWarning(kind, arm, "seen", "do") for kind in kinds for arm in ("a", "b"))
    text = printed(replace(summary, cautions=cautions))
    assert re.findall(r"warning \(([a-z-]+)\): a, b: seen", text) == ["failed-trials", "unequal-work", "steal-time"]
    assert "2 more warnings; to read all: envmatrix report made-up --warnings" in text

"""The cost of an environment: money with the interval of the speed-up, and energy if it can be read."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from envmatrix.__main__ import main
from envmatrix.api import runs
from envmatrix.durations_and_sizes import parse_price
from envmatrix.matrix.metric_sources import MetricSource
from envmatrix.matrix.model import Workload
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import summarise_measurements
from envmatrix.runner.loop import RunEnding
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run

PLAN = make_plan(("fast", "slow"))
SAMPLES = 64 * 20


def summary_of(change=lambda trial: {}, workload=None, price=1.2):
    """Return the summary of a run, whose records have the metrics that ``change(trial)`` returns too."""
    trials = [
        replace(trial, document=trial.document | {"metrics": trial.document["metrics"] | change(trial)})
        for trial in make_trials(PLAN, Machine({"fast": 1.25, "slow": 0.8}), 8)
    ]
    run = make_run(PLAN, **({"workloads": {"cnn": workload}} if workload else {}))
    return summarise_measurements(run, fold_trials(PLAN, trials)).at_price(price)


def rows_of(summary):
    return {row.arm.environment: row for row in summary.groups[0].all_rows}


def printed(summary, width=140):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def test_a_million_samples_cost_what_their_time_costs_with_the_interval_of_the_speed_up():
    rows = rows_of(summary_of())
    fast, effect = rows["fast"].cost, rows["fast"].effect
    assert fast.per == "million samples"
    assert fast.money == pytest.approx(1.2 / 3600 * 1e6 / rows["fast"].value)
    assert fast.money / fast.low == pytest.approx(effect.high / effect.ratio)
    assert fast.high / fast.money == pytest.approx(effect.ratio / effect.low)
    assert fast.low < fast.money < fast.high < rows["baseline"].cost.money < rows["slow"].cost.low
    assert (rows["baseline"].cost.low, rows["baseline"].cost.high) == (None, None)


def test_every_form_of_the_report_has_the_cost_and_says_what_it_is_for():
    summary = summary_of(lambda trial: {"energy_j": 100.0})
    note = "Cost: per million samples, at 1.2 per hour, with the interval of the speed-up. Energy: per million samples,"
    cost = rows_of(summary)["fast"].cost
    for text in (printed(summary), to_markdown(summary), to_html(summary)):
        assert note in " ".join(text.split())
        assert f"{cost.money:#.3g}" in text
        assert "energy (J)" in text
    for text in (to_markdown(summary), to_html(summary)):
        assert f"{cost.low:#.3g} to {cost.high:#.3g}" in text
    assert "cost" in printed(summary, 80)
    arms = {arm["environment"]: arm["cost"] for arm in json.loads(json.dumps(summary_to_json(summary)))["arms"]}
    assert arms["fast"]["money"] == cost.money
    assert arms["fast"]["price_per_h"] == 1.2


def test_without_a_price_nothing_costs_anything():
    trials = make_trials(PLAN, Machine({}), 8)
    summary = summarise_measurements(make_run(PLAN), fold_trials(PLAN, trials))
    assert not any("cost" in arm for arm in summary_to_json(summary)["arms"])
    assert "cost, 95 % CI" not in to_markdown(summary) + to_html(summary)
    assert "Cost:" not in printed(summary)


def test_energy_is_per_million_samples_and_adds_processors_and_gpus():
    summary = summary_of(lambda trial: {"energy_j": 100.0, "gpu_energy_j": 28.0})
    cost = rows_of(summary)["fast"].cost
    assert cost.energy_j == pytest.approx(128.0 / SAMPLES * 1e6)
    assert (cost.energy_per, cost.energy_of) == ("million samples", ("CPUs", "GPUs"))
    assert "of all CPUs and GPUs." in to_markdown(summary)


@pytest.mark.parametrize("joules", [None, 0, 0.0])
def test_energy_that_cannot_be_read_is_not_readable_and_never_0(joules):
    def of_fast_only(trial):
        return {"energy_j": 100.0 if trial.arm.startswith("fast") else joules}

    rows = rows_of(summary_of(of_fast_only))
    assert rows["fast"].cost.energy_j
    assert rows["slow"].cost.energy_j is None
    line = next(line for line in to_markdown(summary_of(of_fast_only)).splitlines() if line.startswith("| slow"))
    assert "| not readable |" in line
    nowhere = summary_of(lambda trial: {"energy_j": joules})
    assert "Energy: not readable." in to_markdown(nowhere)
    assert "energy (J)" not in to_markdown(nowhere)


def test_an_environment_that_could_read_only_one_of_two_counters_is_not_compared():
    rows = rows_of(summary_of(lambda t: {"energy_j": 9.0, "gpu_energy_j": None if t.arm.startswith("slow") else 1.0}))
    assert rows["fast"].cost.energy_j
    assert rows["slow"].cost.energy_j is None


def test_the_energy_of_one_node_of_several_is_not_that_of_the_trial():
    workload = Workload(name="cnn", options={"nodes": 2})
    assert rows_of(summary_of(lambda trial: {"energy_j": 100.0}, workload))["fast"].cost.energy_j is None


@pytest.mark.parametrize(
    ("unit", "per", "seconds"),
    [
        ("img/s", "million img", 1e6 / 250),
        ("samples/min", "million samples", 60e6 / 250),
        ("fps", "million frames", 1e6 / 250),
        ("images per second", "million images", 1e6 / 250),
        ("samples/s/gpu", "run", 90.0),
        ("TFLOPS", "run", 90.0),
        ("MB/s", "run", 90.0),
        ("%", "run", 90.0),
        ("", "run", 90.0),
    ],
)
def test_a_program_costs_per_million_of_what_it_counts_or_per_run(unit, per, seconds):
    source = MetricSource(regex="([0-9]+)", unit=unit)
    workload = Workload(name="cnn", command=("python", "train.py"), metric=source)
    summary = summary_of(lambda trial: {"value": 250.0, "training_s": 90.0}, workload)
    cost = rows_of(summary)["fast"].cost
    assert (cost.per, cost.money) == (per, pytest.approx(1.2 / 3600 * seconds))
    assert (cost.low is None) == (per == "run"), "a run has no interval: the speed-up is of another number"


def test_a_program_that_is_timed_costs_what_its_run_costs_with_the_interval():
    workload = Workload(name="cnn", command=("python", "train.py"))
    seconds = {"fast": 80.0, "slow": 125.0}
    summary = summary_of(lambda t: {"value": seconds.get(t.arm.partition(":")[0], 100.0) + t.block}, workload)
    rows = rows_of(summary)
    assert rows["fast"].cost.per == "run"
    assert rows["fast"].cost.money == pytest.approx(1.2 / 3600 * rows["fast"].value)
    assert rows["fast"].cost.low < rows["fast"].cost.money < rows["fast"].cost.high
    assert "at 1.2 per hour, with the interval of the speed-up" in to_markdown(summary)


def test_an_environment_without_a_successful_trial_has_no_cost():
    trials = make_trials(PLAN, Machine({}, outcome={"slow": "failed"}), 8)
    summary = summarise_measurements(make_run(PLAN), fold_trials(PLAN, trials)).at_price(1.0)
    assert rows_of(summary)["slow"].cost.money is None
    assert "| slow |" in to_markdown(summary)
    assert to_html(summary)


@pytest.mark.parametrize(("text", "price"), [("1.20/h", 1.2), ("3/h", 3.0), (" 0.05 / h ", 0.05)])
def test_a_price_is_a_number_per_hour(text, price):
    assert parse_price(text) == price


@pytest.mark.parametrize(
    "text",
    ["1.20", "1.20/d", "$1.20/h", "1,20/h", "0/h", "-1/h", "nan/h", "inf/h", "1e9/h", "/h", "", "9" * 400 + "/h"],
)
@pytest.mark.parametrize("command", ["report", "bench"])
def test_any_other_price_is_refused_in_one_line_that_says_what_to_type(command, text, capsys):
    assert main([command, f"--price={text}"]) == 2
    error = capsys.readouterr().err
    assert "no price per hour, such as 1.20/h" in error
    assert "Traceback" not in error


def test_report_price_rewrites_the_reports_and_prints_the_cost(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "results" / "one", PLAN, Machine({"fast": 1.25}), 8)
    assert main(["report", "--price", "1.20/h", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["arms"][0]["cost"]["per"] == "million samples"
    assert json.loads((folder.path / "summary.json").read_text()) == body
    assert "cost, 95 % CI" in (folder.path / "report.md").read_text()
    assert main(["report"]) == 0
    assert "cost, 95 % CI" not in (folder.path / "report.md").read_text()
    assert main(["report", "--price", "1/h", "--as", "csv"]) == 2
    assert "leave out --as" in capsys.readouterr().err


def test_bench_writes_the_reports_with_the_price(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "one", PLAN, Machine({"fast": 1.25}), 8)
    monkeypatch.setattr(runs, "run_experiment", lambda *_: RunEnding())
    experiment, observer = SimpleNamespace(folder=folder, run=folder.load()), SimpleNamespace(progress=print)
    result = runs.finish_run(experiment, lambda _: nullcontext(observer), price_per_h=2.0)
    assert rows_of(result.summary)["fast"].cost.price_per_h == 2.0
    assert "at 2 per hour" in (folder.path / "report.html").read_text()

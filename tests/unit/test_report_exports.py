"""Exports, read back by the programs they are made for."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.report.formats.exports import effects_csv, figure_svg, pyperf_json, successful_trials_csv
from envmatrix.report.report_data import summarise, summarise_measurements
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.metrics import TICK_DIGITS, show_rate
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    plan = make_plan(("fast", "=cmd|calc"))
    path = tmp_path_factory.mktemp("run") / "run"
    return summarise(write_run(path, plan, Machine({"fast": 1.3}, noise=0.02), 8))


def test_csv_has_a_line_an_effect_and_no_formula_for_a_spreadsheet(summary):
    rows = list(csv.DictReader(io.StringIO(effects_csv(summary))))
    fast = next(row for row in rows if (row["environment"], row["primary"]) == ("fast", "True"))
    assert float(fast["low"]) < 1.3 < float(fast["high"])
    assert "=cmd|calc" not in {row["environment"] for row in rows}
    assert "'=cmd|calc" in {row["environment"] for row in rows}
    text = successful_trials_csv(summary)
    assert text.count("\r\n") == text.count("\n") == 1 + 4 * 8, "line ends of RFC 4180"
    assert len(list(csv.reader(io.StringIO(text)))) == 1 + 4 * 8


def test_pyperf_reads_and_compares_what_is_exported(summary, tmp_path):
    pytest.importorskip("pyperf")
    files = {}
    for environment in ("baseline", "fast"):
        files[environment] = tmp_path / f"{environment}.json"
        files[environment].write_text(pyperf_json(summary, environment))

    def pyperf(*arguments):
        command = [sys.executable, "-m", "pyperf", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    compared = pyperf("compare_to", files["baseline"], files["fast"])
    assert "1.3" in compared
    assert "faster" in compared
    assert "Total number of values: 8" in pyperf("stats", files["fast"])


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"warmup_steps": 10}, 10), ({"warmup_steps": 0}, None),
        ({"warmup_steps": 10, "compile": "inductor", "verify_steps": 3}, 10),
        ({"warmup_steps": 10, "compile": "inductor", "verify_steps": 0}, 9),
    ],
)  # fmt: skip
def test_pyperf_gets_each_trials_warm_up_as_seconds_a_sample(tmp_path, options, steps):
    pyperf = pytest.importorskip("pyperf")
    plan = make_plan(("fast",))
    trials = list(make_trials(plan, Machine({}), 3))
    for trial in trials:
        trial.document["metrics"]["warmup_s"] = 0.4
        trial.document["result"].update(samples=3200, steps=50)
    workload = Workload(name="cnn", options=options)
    made = summarise_measurements(make_run(plan, workloads={"cnn": workload}), fold_trials(plan, trials))
    file = tmp_path / "fast.json"
    file.write_text(pyperf_json(made, "fast"))
    (found,) = pyperf.BenchmarkSuite.load(str(file)).get_benchmarks()
    told = [run.warmups for run in found.get_runs()]
    assert told == [((1, pytest.approx(0.4 / (steps * 64))),) if steps else () for _ in told]
    assert len(told) == 3


def test_pyperf_gets_the_trials_dates_and_every_metric_of_a_program_the_way_it_counts(tmp_path):
    pyperf = pytest.importorskip("pyperf")
    plan = make_plan(("fast",))
    metrics = {"rate": {"regex": "(x)", "unit": "points"}, "memory": {"regex": "(y)", "unit": "B", "better": "lower"}}
    workload = Workload.model_validate({"name": "cnn", "command": ["a"], "metrics": metrics})
    trials = [
        replace(trial, document={
            **trial.document, "metrics": {"value": 50.0}, "more_metrics": [{"name": "memory", "value": 2.0**30}],
        })
        for trial in make_trials(plan, Machine({}), 3)
    ]  # fmt: skip
    made = summarise_measurements(make_run(plan, workloads={"cnn": workload}), fold_trials(plan, trials))
    file = tmp_path / "fast.json"
    file.write_text(pyperf_json(made, "fast"))
    rate, memory = pyperf.BenchmarkSuite.load(str(file)).get_benchmarks()
    assert (rate.get_name(), rate.get_values(), rate.get_unit()) == ("cnn@local", (0.02,) * 3, "second")
    assert rate.get_metadata()["description"] == "one over rate (points): more of it is better"
    assert (memory.get_name(), memory.get_unit()) == ("cnn@local memory", "byte")
    assert memory.get_values() == (2.0**30,) * 3
    began = [trial.started for trial in trials if trial.environment == "fast"]
    dates = [run["metadata"]["date"] for run in json.loads(file.read_text())["benchmarks"][0]["runs"]]
    assert dates == [f"{datetime.fromtimestamp(second, timezone.utc):%Y-%m-%d %H:%M:%S}" for second in began]


@pytest.mark.parametrize(
    ("value", "shown", "label"),
    [
        (1002.5, "1,002", "1,002.5"), (1e6, "1,000,000", "1,000,000"), (5.431, "5.431", "5.431"),
        (987.654, "987.7", "987.654"), (2e13, "2e+13", "2e+13"),
    ],
)  # fmt: skip
def test_a_rate_has_the_digits_that_its_place_deserves(value, shown, label):
    assert (show_rate(value), show_rate(value, digits=TICK_DIGITS)) == (shown, label)


@pytest.mark.parametrize("seconds", [1.0, 0.01, 100.0])
def test_every_label_of_an_axis_is_its_own_place(seconds):
    """Guards against two ticks with one label: with three digits, 1.025 s is printed as 1.02 s."""
    plan = make_plan(("fast",))
    workload = Workload.model_validate({"name": "cnn", "command": ["a"]})
    trials = [
        replace(trial, document={**trial.document, "metrics": {"value": seconds * (1 + 0.0018 * trial.block)}})
        for trial in make_trials(plan, Machine({}), 8)
    ]
    made = summarise_measurements(make_run(plan, workloads={"cnn": workload}), fold_trials(plan, trials))
    drawn = ET.fromstring(figure_svg(made, "time"))
    labels = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "end soft"]
    places = [float(label.split()[0]) * {"s": 1.0, "ms": 1e-3}[label.split()[1]] for label in labels]
    assert len(labels) == len(set(labels)) > 3
    assert places == pytest.approx([places[0] + n * (places[1] - places[0]) for n in range(len(places))], rel=1e-9)


def test_trials_that_began_together_have_a_minute_to_be_seen_in():
    plan = make_plan(("fast",))
    trials = [
        replace(trial, started=1e9 + 1e-4 * number) for number, trial in enumerate(make_trials(plan, Machine({}), 1))
    ]
    made = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    drawn = ET.fromstring(figure_svg(made, "time"))
    labels = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "mid soft"]
    assert labels[:2] == ["0", "0.2"]
    assert labels[-2:] == ["1", "minutes since the first trial"]


def test_figures_are_whole_svg_files(summary):
    for kind in ("forest", "time"):
        root = ET.fromstring(figure_svg(summary, kind))
        assert root.tag.endswith("svg")
        assert root.find("{http://www.w3.org/2000/svg}style") is not None


def test_hostile_names_leave_a_figure_whole():
    hostile = "</svg><script>\x00\x1b\ud800&\"'"
    plan = make_plan((hostile,), workloads=(hostile,))
    run = make_run(plan)
    made = summarise_measurements(run, fold_trials(plan, make_trials(plan, Machine({}), 7)))
    for kind in ("forest", "time"):
        names = {element.tag.rpartition("}")[2] for element in ET.fromstring(figure_svg(made, kind)).iter()}
        assert "script" not in names
    effects_csv(made).encode()
    pyperf_json(made, hostile).encode()


@pytest.mark.parametrize(
    "call",
    [
        lambda s: pyperf_json(s, "fas"),
        lambda s: figure_svg(s, "forrest"),
        lambda s: figure_svg(s, "forest", 4),
        lambda s: pyperf_json(summarise_measurements(s.run, fold_trials(s.plan, [])), "fast"),
        lambda s: figure_svg(replace(s, measured=fold_trials(s.plan, [])), "time"),
    ],
)
def test_what_cannot_be_exported_is_bad_input_with_a_remedy(summary, call):
    with pytest.raises(InputError) as caught:
        call(summary)
    assert caught.value.remedy

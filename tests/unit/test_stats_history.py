"""Histories and their change points."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from envmatrix.matrix.model import Workload
from envmatrix.report.formats.history_page import to_html
from envmatrix.report.tables import history as history_table
from envmatrix.report.tables.history import SeriesColumn, print_history, sparkline
from envmatrix.report.write import write_reports
from envmatrix.results import RunFolder
from envmatrix.stats.history import Change, History, Point, Series, read_history
from envmatrix.stats.inference.change_points import (
    FALSE_ALARM_RATE,
    MIN_SEGMENT_LENGTH,
    best_split,
    change_points,
    fewest_runs,
)
from tests.synthetic import Machine, make_plan, make_run, make_trials, slowed, write_run


@given(st.lists(st.integers(-30, 30), min_size=6, max_size=40))
@settings(max_examples=80, deadline=None)
def test_the_best_split_is_the_best_of_all(numbers):
    values = np.array(numbers, dtype=float)
    squares = lambda part: ((part - part.mean()) ** 2).sum()  # noqa: E731
    places = range(MIN_SEGMENT_LENGTH, len(values) - MIN_SEGMENT_LENGTH + 1)
    gains = [squares(values) - squares(values[:at]) - squares(values[at:]) for at in places]
    at, gain = best_split(values)
    assert gain == pytest.approx(max(gains), abs=1e-6)
    assert gains[at - MIN_SEGMENT_LENGTH] == pytest.approx(max(gains), abs=1e-6)


def test_two_steps_are_both_found():
    chance = np.random.default_rng(4)
    values = np.concatenate([chance.normal(level, 0.01, 30) for level in (0.0, 0.1, 0.04)])
    assert change_points(values) == (30, 60)


def test_a_step_is_found_where_it_is_and_a_single_outlier_is_not_one():
    chance = np.random.default_rng(1)
    values = np.concatenate([chance.normal(0, 0.01, 40), chance.normal(-0.06, 0.01, 30)])
    assert change_points(values) == (40,)
    values[:40] = values[:40] - values[:40].mean()
    quiet = chance.normal(0, 0.01, 60)
    quiet[30] += 0.03
    assert change_points(quiet) == ()


def test_quiet_histories_stay_unmarked():
    marked = [bool(change_points(np.random.default_rng(seed).normal(0, 0.02, 200))) for seed in range(100)]
    assert np.mean(marked) <= 0.05


@pytest.mark.parametrize("length", [10, 14])
def test_short_histories_and_machines_with_two_levels_are_marked_in_at_most_5_of_100_cases(length):
    chance = np.random.default_rng(length)
    quiet, two = chance.normal(0, 0.02, (200, length)), chance.normal(0, 0.003, (200, length))
    two += 0.1 * (chance.random((200, length)) < 0.5)
    for runs in (quiet, two):
        assert np.mean([bool(change_points(one)) for one in runs]) < 0.09
    assert change_points(np.repeat([0.0, 5.0], 4)) == (), "eight runs are too few"
    assert (fewest_runs(), fewest_runs(FALSE_ALARM_RATE / 10)) == (10, 12), "many series take more"


def test_which_orders_a_series_is_compared_with_is_its_own_so_that_lucky_ones_even_out():
    nearly = np.random.default_rng(3).normal(0, 1, 14) + 1.625 * (np.arange(14) >= 7)
    marked = [bool(change_points(nearly + shift)) for shift in range(40)]
    assert 5 < sum(marked) < 35, "a step that other orders show in one of 20 cases"
    assert marked == [bool(change_points(nearly + shift)) for shift in range(40)]


def written(tmp_path, days, speed):
    plan = make_plan(("fast",))
    for day in range(1, days + 1):
        when = f"2026-01-{day:02d}T00:00:00Z"
        machine = Machine(speed(day), noise=0.01)
        write_reports(write_run(tmp_path / f"run-{day:02d}", plan, machine, 6, day, created=when))
    return {item.environment: item for item in read_history(tmp_path).series}


def test_a_machine_that_changed_is_the_machines_change_and_no_environments(tmp_path):
    series = written(
        tmp_path, 14, lambda day: {"baseline": 1.0, "fast": 1.2} if day < 8 else {"baseline": 0.7, "fast": 0.84}
    )
    assert [change.run for change in series["control"].changes] == ["run-08"]
    assert series["control"].changes[0].factor == pytest.approx(0.7, rel=0.03)
    assert (series["fast"].changes, series["baseline"].changes) == ((), ())
    assert (series["fast"].followed, series["baseline"].followed) == (14, 0)


def test_too_few_runs_are_said_to_be_too_few(tmp_path):
    series = written(tmp_path, 6, lambda day: {"baseline": 1.0, "fast": 2.0 if day < 4 else 1.0})
    assert series["fast"].changes == ()
    out = io.StringIO()
    print_history(read_history(tmp_path), Console(file=out, width=200))
    assert "too few runs: 6 of 10" in out.getvalue()
    assert "control (the machine)" in out.getvalue()


def test_runs_of_one_host_make_a_series_and_its_step_is_marked(tmp_path):
    plan = make_plan(("fast",))
    for day in range(1, 15):
        speed = {"baseline": 1.0, "fast": 1.2 if day < 8 else 1.0}
        when = f"2026-01-{day:02d}T00:00:00Z"
        folder = write_run(tmp_path / f"run-{day:02d}", plan, Machine(speed, noise=0.01), 6, day, created=when)
        write_reports(folder)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text("{")
    (tmp_path / "empty").mkdir()
    history = read_history(tmp_path)
    series = {item.environment: item for item in history.series}
    assert (history.runs, history.unreadable) == (14, ("broken",))
    assert [change.run for change in series["fast"].changes] == ["run-08"]
    assert series["fast"].changes[0].factor == pytest.approx(1 / 1.2, rel=0.03)
    assert series["baseline"].changes == ()
    out = io.StringIO()
    print_history(history, Console(file=out, width=200))
    assert "since run-08" in out.getvalue()
    assert "broken" in out.getvalue()
    json.dumps(history.to_json(), allow_nan=False)
    page = to_html(history)
    assert page.count("<figure>") == 1
    assert "14 runs on 1 host: 1 change of level." in page
    assert "fast: x0.8" in page  # the flag's name for a screen reader


def test_a_page_of_a_long_history_stays_small_and_hostile_names_stay_text():
    evil = "<script>alert(1)</script>"
    points = tuple(Point(f"{evil}{day}", f"2026-{day}", 100.0, None, None, None) for day in range(10_000))
    page = to_html(History(10_000, (Series("host", evil, "local", evil, "samples_per_s", points, ()),), (evil,)))
    assert evil not in page
    assert len(page) < 100_000


def test_a_column_added_in_one_place_stands_in_the_terminal_and_on_the_page(monkeypatch):
    points = tuple(Point(f"run-{day}", f"2026-{day}", 100.0, 1.25, 1.2, 1.3) for day in range(3))
    history = History(3, (Series("host", "cnn", "local", "fast", "samples_per_s", points, ()),), ())
    first = SeriesColumn("first run", lambda series: series.points[0].run)
    monkeypatch.setattr(history_table, "SERIES_COLUMNS", (*history_table.SERIES_COLUMNS, first))
    out = io.StringIO()
    print_history(history, Console(file=out, width=200))
    for text in (out.getvalue(), to_html(history)):
        assert "first run" in text
        assert "run-0" in text
        assert "1.25" in text


def told(*points):
    """Return the terminal output and the page for one series."""
    history = History(3, (Series("host", "cnn", "local", "fast", "samples_per_s", points, ()),), ())
    out = io.StringIO()
    print_history(history, Console(file=out, width=200))
    return " ".join(out.getvalue().split()), to_html(history)


def test_a_speed_up_in_a_history_has_its_interval_and_says_what_bars_it_from_an_answer():
    for text in told(Point("run", "2026-01-01", 100.0, 1.25, 1.2, 1.3)):
        assert "1.25 (1.20 to 1.30)" in text
    for text in told(Point("run", "2026-01-01", 100.0, 1.25, 1.2, 1.3, ("unequal-work",))):
        assert "1.25 (1.20 to 1.30), unequal-work" in text
    for text in told(Point("run", "2026-01-01", 100.0, 1.37, None, None)):
        assert "1.37" not in text


def test_a_run_that_did_other_work_is_not_a_speed_up_in_its_history(tmp_path):
    plan = make_plan(("fast",))
    machine = Machine({"fast": 1.3}, noise=0.01, loss={"fast": 2.0})
    folder = write_run(tmp_path / "run", plan, machine, 8)
    write_reports(folder)
    file = folder.path / "summary.json"
    (fast,) = (arm for arm in json.loads(file.read_text())["arms"] if arm["environment"] == "fast")
    assert fast["flags"] == ["unequal-work", "stand-in-data"]
    series = {item.environment: item for item in read_history(tmp_path).series}
    assert series["fast"].points[0].barred == ("unequal-work",)


def test_a_page_without_runs_says_so():
    assert "0 runs" in to_html(History(0, (), ()))


def test_no_results_is_an_empty_history(tmp_path):
    assert read_history(tmp_path / "none").runs == 0


def test_a_sparkline_shows_the_course():
    assert sparkline([1, 2, 3, 4]) == "▁▃▆█"
    assert len(sparkline(list(range(500)))) == 24
    assert sparkline([5, 5]) == "▄▄"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    "text",
    ['{"schema": 1, "arms": [1]}', '{"schema": 1, "arms": [{}, null]}', '{"schema": 1}', "[]",
     '{"schema": 1, "arms": [{"environment": "a", "median": 1}, {"environment": "a", "median": 2}]}'],
)  # fmt: skip
def test_a_summary_that_envmatrix_did_not_write_is_named_and_passed_over(tmp_path, text):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "summary.json").write_text(text)
    assert read_history(tmp_path).unreadable == ("odd",)


def test_runs_in_turns_and_runs_one_after_the_other_are_two_series(tmp_path):
    plan = make_plan(("fast",))
    for day, schedule in enumerate(("sequential", "turns", "turns"), 1):
        together = 3 if schedule == "turns" else None
        trials = (replace(trial, together=together) for trial in make_trials(plan, Machine({"fast": 1.2}), 6, day))
        folder = RunFolder(tmp_path / f"run-{day}")
        folder.create(make_run(plan, f"run-{day}", design={"schedule": schedule}), "version: 1\n")
        for trial in trials:
            folder.append(trial)
        write_reports(folder)
    history = read_history(tmp_path)
    fast = {one.schedule: len(one.points) for one in history.series if one.environment == "fast"}
    assert fast == {"": 1, "turns of 3 steps": 2}
    out = io.StringIO()
    print_history(history, Console(file=out, width=200))
    page = to_html(history)
    assert "cnn@local, turns of 3 steps" in out.getvalue()
    assert "cnn on local, turns of 3 steps, made-up-host" in page
    assert page.count("<figure>") == 1  # a single run has no figure


def of_a_program(trial, together):
    """Return the trial of a program that is timed by its wall time."""
    document = {**trial.document, "metrics": {"value": trial.document["metrics"]["training_s"]}}
    return replace(trial, document=document, together=together)


def test_a_programs_own_number_is_called_what_its_report_calls_it(tmp_path):
    """Guards against the heading "reported value" for every number, and against a wall time without its unit."""
    plan = make_plan(("fast",), workloads=("mine", "images", "steps"))
    kinds = {"mine": {"wall": True}, "images": {"regex": "([0-9]+)", "unit": "images/s"}, "steps": {"steps": "^x"}}
    own = {name: Workload(name=name, command=("x",), metric=metric) for name, metric in kinds.items()}
    for name in ("run", "second"):
        folder = RunFolder(tmp_path / name)
        folder.create(make_run(plan, name, workloads=own), "version: 1\n")
        for trial in make_trials(plan, Machine({"fast": 1.2}), 6):
            folder.append(of_a_program(trial, None))
        write_reports(folder)
    page, out = to_html(read_history(tmp_path)), io.StringIO()
    for said in ("Wall time, each run's mean", "Throughput, each", "Steps a second, each"):
        assert said in page
    for axis in ("wall time", "throughput, images/s", "steps a second, steps/s"):
        assert f">{axis}</text>" in page
    print_history(read_history(tmp_path), Console(file=out, width=200))
    cells = {name: next(line for line in out.getvalue().splitlines() if f" {name}@local" in line) for name in kinds}
    units = {"mine": "s", "images": "images/s", "steps": "steps/s"}
    assert all(f" {unit} " in cells[name] for name, unit in units.items())
    older = replace(read_history(tmp_path).series[0].points[0], metric=("", "", ""))
    series = Series("host", "mine", "local", "fast", "value", (older, replace(older, run="third")), ())
    assert "Reported value: each run's mean" in to_html(History(1, (series,), ()))


def test_turns_of_a_program_are_a_part_of_a_second_and_one_that_took_none_is_no_series_in_turns(tmp_path):
    plan = make_plan(("fast",), workloads=("cnn", "mine", "own-clock", "steps"))
    kinds = {"mine": {"wall": True}, "own-clock": {"regex": "([0-9]+) s"}, "steps": {"steps": "^x"}}
    own = {name: Workload(name=name, command=("x",), metric=metric) for name, metric in kinds.items()}
    folder = RunFolder(tmp_path / "run")
    workloads = {"cnn": Workload(name="cnn", options={"batch_size": 64}), **own}
    folder.create(make_run(plan, "run", design={"schedule": "turns"}, workloads=workloads), "version: 1\n")
    for trial in make_trials(plan, Machine({"fast": 1.2}), 6):
        together = None if trial.workload == "own-clock" else 3
        folder.append(replace(trial, together=3) if trial.workload == "cnn" else of_a_program(trial, together))
    write_reports(folder)
    schedules = {one.workload: one.schedule for one in read_history(tmp_path).series}
    assert schedules == {
        "cnn": "turns of 3 steps",
        "mine": "turns of 0.3 s",
        "own-clock": "",
        "steps": "turns of 3 steps",
    }


def test_a_speed_up_without_a_check_of_equal_work_says_so_in_its_history(tmp_path):
    folder = write_run(tmp_path / "run", make_plan(("fast",)), Machine({"fast": 1.3}, noise=0.01), 8)
    write_reports(folder)
    file = folder.path / "summary.json"
    body = json.loads(file.read_text())
    (answer,) = body["best"]
    assert answer["equal_work_checked"]
    for is_checked in (False, True):
        file.write_text(json.dumps({**body, "best": [{**answer, "equal_work_checked": is_checked}]}))
        (fast,) = (one for one in read_history(tmp_path).series if one.environment == "fast")
        assert fast.points[0].unchecked is not is_checked
    for text in told(Point("run", "2026-01-01", 100.0, 1.25, 1.2, 1.3, unchecked=True)):
        assert "1.25 (1.20 to 1.30), equal work not checked" in text


def test_a_speed_up_of_a_short_run_says_so_in_its_history_and_what_that_means(tmp_path):
    plan = make_plan(("fast",))
    for name, period, short in (("short", 10.0, True), ("long", 300.0, False)):
        folder = RunFolder(tmp_path / name / "run")
        folder.create(make_run(plan, "run"), "version: 1\n")
        for trial in slowed(plan, Machine({"fast": 1.3}, noise=0.01), 8, lambda _: False, period=period):
            folder.append(trial)
        write_reports(folder)
        (fast,) = (one for one in read_history(tmp_path / name).series if one.environment == "fast")
        assert fast.points[0].short is short
    point = Point("run", "2026-01-01", 100.0, 1.25, 1.2, 1.3)
    for text in told(replace(point, short=True)):
        assert "1.25 (1.20 to 1.30), short run" in text
        assert "95 % CI describes the machine during that time" in text
    for text in told(point):
        assert "hort run" not in text


def test_a_single_run_is_told_in_the_table_and_no_figure_is_drawn_of_it():
    """Guards against figures with one point in an empty frame."""
    points = tuple(Point(f"run-{day}", f"2026-{day}", 100.0, 1.25, 1.2, 1.3) for day in range(2))
    pages = [to_html(History(1, (Series("host", "cnn", "local", "fast", "samples_per_s", some, ()),), ()))
             for some in (points[:1], points)]  # fmt: skip
    assert ["<polyline" in page for page in pages] == [False, True]
    told = "One run so far: figures are drawn from the second one on. Latest: throughput, samples/s, its mean."
    assert [told in page for page in pages] == [True, False]


def test_a_page_of_too_few_runs_does_not_count_no_changes():
    points = tuple(Point(f"run-{day}", f"2026-{day}", 100.0, 1.25, 1.2, 1.3) for day in range(3))
    few = Series("host", "cnn", "local", "fast", "samples_per_s", points, (), followed=3)
    enough = replace(few, environment="old", followed=14)
    assert "3 runs on 1 host: too few runs to look for a change of level." in to_html(History(3, (few,), ()))
    both = to_html(History(3, (few, enough), ()))
    assert "0 changes of level; too few runs to look for any in 1 of 2 series." in both


def test_a_factor_and_a_speed_up_near_1_show_on_which_side_of_it_they_are():
    change = Change(0, "run", "2026-01-01", 1.0024)
    point = Point("run", "2026-01-01", 100.0, 1.003, 1.001, 1.005)
    series = Series("host", "cnn", "local", "fast", "samples_per_s", (point,), (change,), followed=14)
    for text in (history_table._changes(series), to_html(History(1, (series,), ()))):
        assert "x1.002 since run" in text
    assert history_table._speed_up(series) == "1.003 (1.001 to 1.005)"

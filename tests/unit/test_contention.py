"""CPU contention: it qualifies every answer and withdraws a verdict that it could explain."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import envmatrix
from bench import process_resource_usage
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import to_renderable
from envmatrix.report.report_data import Summary, summarise_measurements
from envmatrix.report.tables.history import SERIES_COLUMNS
from envmatrix.report.write import write_reports
from envmatrix.results import RunFolder, Trial
from envmatrix.stats.effects import Contended, Effect, Flag, unless_contended, verdict_of
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.quality.contention import Waiting, contention_bounds
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run, make_trials

SPEED = {"pytorch-ci": 4.32, "tcmalloc": 1.01}
#: Shares of time in which threads waited for a CPU, for a run with the misleading headline "4.32 times as fast".
BUSY = {"baseline": 0.49, "control": 0.49, "pytorch-ci": 0.23, "tcmalloc": 0.48}


def waited(trial: Trial, share: float, threads: int = 2, **more: float) -> Trial:
    """Return a trial whose threads, always runnable, waited for a CPU in this share of the time."""
    metrics = trial.document["metrics"]
    whole = threads * metrics["training_s"]
    metrics.update(user_s=whole * (1 - share), system_s=0.0, run_delay_s=whole * share)
    metrics.update({name: value * metrics["training_s"] for name, value in more.items()})
    return trial


def trials_of(plan, waits, blocks=10, speed=SPEED, **more):
    for trial in make_trials(plan, Machine(speed, noise=0.02, stand_in=False), blocks):
        yield waited(trial, waits.get(trial.environment, 0.0), **more)


def summary_of(waits, speed=SPEED, **more) -> Summary:
    plan = make_plan(tuple(speed))
    return summarise_measurements(make_run(plan), fold_trials(plan, trials_of(plan, waits, speed=speed, **more)))


def verdicts(summary: Summary) -> dict[str, tuple[str, str]]:
    return {effect.environment: (effect.verdict, effect.withheld) for effect in summary.analysis.primary_effects()}


def printed(summary: Summary, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(to_renderable(summary, width))
    return console.export_text()


@pytest.fixture
def stored(tmp_path):
    """Return a stored run of the busy machine, with its reports."""
    plan = make_plan(tuple(SPEED))
    folder = RunFolder(tmp_path / "busy")
    folder.create(make_run(plan, "busy"), MATRIX_TEXT)
    for trial in trials_of(plan, BUSY):
        folder.append(trial)
    write_reports(folder)
    return folder


def test_an_effect_that_waiting_for_cpus_can_explain_is_no_verdict_and_the_first_sentence_says_so():
    summary = summary_of(BUSY)
    assert verdicts(summary)["pytorch-ci"] == ("undecided", Flag.CONTENDED)
    (group,) = summary.groups
    begins = "Measured on a busy machine (baseline waited for a CPU 49% of the time, pytorch-ci 23%): no environment"
    assert group.headline.startswith(begins)
    assert "which the waiting can explain. Make the machine quiet first (`envmatrix doctor`)." in group.headline
    assert group.best is None


def test_it_is_said_everywhere(stored):
    summary = envmatrix.load(stored.path).summary
    begins = "Measured on a busy machine (baseline waited for a CPU 49% of the time, pytorch-ci 23%)"
    best = summary_to_json(summary)["best"]
    flat = [" ".join(printed(summary, width).split()) for width in (80, 120)]
    for text in (
        *flat,
        to_markdown(summary).replace("\\", ""),
        to_html(summary),
        str(best),
        str(envmatrix.load(stored.path)),
    ):
        assert begins in text
    for text in (*flat, to_markdown(summary), to_html(summary)):
        assert "undecided: contention" in text
    (row,) = (
        row for row in summary_to_json(summary)["effects"] if row["environment"] == "pytorch-ci" and row["primary"]
    )
    assert (row["verdict"], row["withheld"]) == ("undecided", "cpu-contention")
    (effect,) = (one for one in envmatrix.effects(stored.path) if one.environment == "pytorch-ci")
    assert (effect.verdict, effect.withheld, Flag.CONTENDED in effect.flags) == ("undecided", "cpu-contention", True)


@pytest.mark.parametrize("pair", ["baseline,pytorch-ci", "pytorch-ci,baseline", "tcmalloc,pytorch-ci"])
@pytest.mark.parametrize("allowed", [0.0, 0.5])
def test_compare_says_it_first_and_draws_no_conclusion_either_way(stored, pair, allowed):
    found = envmatrix.compare(stored.path, environments=pair, allowed=allowed)
    (item,) = found.items
    assert item.status == "cannot say"
    assert item.line().startswith(f"cnn@local: measured on a busy machine ({item.old} waited for a CPU ")
    assert "can explain it" in item.line()


def test_history_shows_why_the_newest_ratio_is_no_verdict(stored):
    found = envmatrix.history(stored.path.parent)
    (series,) = (one for one in found.series if one.environment == "pytorch-ci")
    cells = {column.title: column.cell(series) for column in SERIES_COLUMNS}
    assert ", undecided: contention" in cells["speed-up (95 % CI)"]
    (other,) = (one for one in found.series if one.environment == "tcmalloc")
    assert ", cpu-contention" in next(column.cell(other) for column in SERIES_COLUMNS if "speed-up" in column.title)


@pytest.mark.parametrize("waits", [{"baseline": 0.09, "control": 0.09, "pytorch-ci": 0.13}])
def test_an_effect_beyond_what_waiting_can_explain_stands_and_is_told_with_what_a_quiet_machine_leaves_open(waits):
    summary = summary_of(waits)
    assert verdicts(summary)["pytorch-ci"] == ("faster", "")
    headline = summary.groups[0].headline
    assert headline.startswith(
        "Measured on a busy machine (baseline waited for a CPU 9% of the time, pytorch-ci 13%): "
    )
    assert " On a quiet machine it may be 3." in headline


@pytest.mark.parametrize(
    ("waits", "more", "said"),
    [
        ({}, {}, ("faster", "")),
        (dict.fromkeys(BUSY, 0.02), {}, ("faster", "")),
        ({"pytorch-ci": 0.6}, {}, ("faster", "")),  # its own threads: the reference was not disturbed
        (BUSY, {"others_s": 0.02}, ("faster", "")),  # threads of the baseline wait for one another
        (BUSY, {"others_s": 1.0}, ("undecided", Flag.CONTENDED)),
        (dict.fromkeys(BUSY, 0.008), {"threads": 64}, ("faster", "")),  # 4.32 is more than half of its time
        (dict.fromkeys(BUSY, 0.0139), {"threads": 64, "others_s": 0.9}, ("undecided", Flag.CONTENDED)),
    ],
)  # fmt: skip
def test_only_time_that_others_can_have_cost_takes_a_verdict_back(waits, more, said):
    assert verdicts(summary_of(waits, **more))["pytorch-ci"] == said


def test_slower_is_taken_back_too_and_an_environment_of_too_many_threads_stays_slower():
    speed = {"hurt": 0.6, "tcmalloc": 1.0}
    busy = {"baseline": 0.1, "control": 0.1, "hurt": 0.4, "tcmalloc": 0.1}
    assert verdicts(summary_of(busy, speed))["hurt"] == ("undecided", Flag.CONTENDED)
    assert verdicts(summary_of({"hurt": 0.4}, speed))["hurt"] == ("slower", "")
    assert verdicts(summary_of({"hurt": 0.4}, speed, others_s=0.9))["hurt"] == ("undecided", Flag.CONTENDED)


def test_time_that_the_hypervisor_took_counts_as_well():
    plan = make_plan(("fast",))

    def stolen(trial):
        trial.document["evidence"]["system"]["steal_ticks"] = round(40 * trial.document["metrics"]["training_s"])
        return trial

    machine = Machine({"fast": 1.3}, noise=0.01, stand_in=False)
    summary = summarise_measurements(make_run(plan), fold_trials(plan, map(stolen, make_trials(plan, machine, 10))))
    assert verdicts(summary)["fast"] == ("undecided", Flag.CONTENDED)


def test_what_both_sides_lose_cancels_on_a_machine_that_was_left_alone():
    quiet = {"a": Waiting(0.02, 0.04), "b": Waiting(0.01, 0.02)}
    assert contention_bounds(quiet, ["a"], "b").low == pytest.approx(0.96 / 0.98)
    assert contention_bounds(quiet, ["a"], "b").high == 1.0
    assert contention_bounds(quiet, ["a"], "b").shares is None
    assert contention_bounds({}, ["a"], "b") == Contended()


@pytest.mark.parametrize(
    ("low", "high", "verdict", "withheld"),
    [(1.2, 1.4, "faster", ""), (1.05, 1.4, "undecided", "cpu-contention"), (0.5, 0.6, "slower", ""),
     (0.6, 0.95, "undecided", "cpu-contention"), (0.99, 1.01, "undecided", "cpu-contention"),
     (0.9, 1.2, "undecided", "")],
)  # fmt: skip
def test_a_verdict_must_hold_for_all_that_contention_can_have_done(low, high, verdict, withheld):
    effect = Effect("w", "e", "local", "b", "m", 1.0, low, high, 0.01, verdict_of(low, high, 0.03), 10)
    found = unless_contended(effect, Contended(0.9, 1.1, (0.1, 0.1)), 0.03)
    assert (found.verdict, found.withheld) == (verdict, withheld)


def test_that_two_are_the_same_must_hold_by_the_bounds_that_said_so():
    effect = Effect("w", "e", "local", "b", "m", 1.0, 0.97, 1.031, 0.9, "same", 10, one_sided=(0.98, 1.02))
    assert [unless_contended(effect, Contended(1 / by, by), 0.03).verdict for by in (1.005, 1.02)] == [
        "same", "undecided",
    ]  # fmt: skip


def test_memory_and_accuracy_are_judged_as_ever():
    plan = make_plan(("small",))
    machine = Machine({}, noise=0.01, memory={"small": 3e8}, stand_in=False)
    trials = (waited(trial, 0.5) for trial in make_trials(plan, machine, 10))
    summary = summarise_measurements(make_run(plan), fold_trials(plan, trials))
    found = summary.analysis.find("small:cnn@local", "peak_rss_bytes")
    assert found is not None
    assert (found.verdict, found.withheld) == ("faster", "")


def test_two_runs_are_compared_with_what_each_of_them_waited(stored, tmp_path):
    quiet = RunFolder(tmp_path / "quiet")
    plan = make_plan(tuple(SPEED))
    quiet.create(make_run(plan, "quiet"), MATRIX_TEXT)
    for trial in trials_of(plan, dict.fromkeys(BUSY, 0.005)):
        quiet.append(replace(trial, started=(trial.started or 0) + 1e5))
    found = envmatrix.compare(quiet.path, stored.path, environments="baseline")
    assert found.items[0].machine == "measured on a busy machine (quiet waited for a CPU 1% of the time, busy 49%): "


def test_history_and_report_print_one_number_for_one_run(stored):
    """Guards against a median in the history for a value that the report gives as a mean."""
    summary = envmatrix.load(stored.path).summary
    (group,) = summary.groups
    shown = {row.arm.environment: group.metric.show(row.value) for row in group.all_rows}
    cells = {
        one.environment: next(column for column in SERIES_COLUMNS if column.title == "latest").cell(one)
        for one in envmatrix.history(stored.path.parent).series
    }
    assert cells == shown
    document = json.loads((stored.path / "summary.json").read_text())
    assert {group.metric.show(arm["median"]) for arm in document["arms"]} != set(shown.values()), "or it shows nothing"


def ticks_of(line: str, fields: slice) -> float:
    return sum(map(int, line.rpartition(")")[2].split()[fields])) / os.sysconf("SC_CLK_TCK")


def test_the_cpu_time_of_others_is_counted_and_that_of_ones_own_children_is_not():
    loop = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"
    orphan = ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, loop.format(60)]
    other = int(subprocess.run(orphan, check=True, capture_output=True, text=True).stdout)  # not a child of ours
    stat, machine = Path(f"/proc/{other}/stat"), Path("/proc/stat")

    def seen() -> tuple[float, float]:
        return ticks_of(stat.read_text(), slice(11, 13)), ticks_of(machine.read_text().splitlines()[0], slice(1, 4))

    try:
        before, first = seen(), process_resource_usage.read()
        subprocess.run([sys.executable, "-c", loop.format(0.5)], check=True)
        grown, after = process_resource_usage.since(first), seen()
    finally:
        os.kill(other, signal.SIGKILL)
    theirs, busy = (now - then for then, now in zip(before, after, strict=True))
    assert theirs > 0.1
    assert theirs - 0.1 < grown["others_s"] < busy - 0.5 + 0.2

"""Folding of trials, equal work, and the self-test."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from envmatrix.api.result import Result
from envmatrix.api.run_results import write_report
from envmatrix.errors import StoreError
from envmatrix.evidence.dotted_paths import Kind, kind_of
from envmatrix.results import RunFolder, Trial
from envmatrix.results.trial_line_reader import LineReader
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.effects import Flag
from envmatrix.stats.evidence_text_cache import EVIDENCE
from envmatrix.stats.measurements import MeasurementBuilder, fold_trials, read_measurements
from envmatrix.stats.selftest import false_alarm_rate, relabelled_false_alarms, simulated_false_alarms
from tests.synthetic import Machine, make_plan, make_trials, write_run

PLAN = make_plan(("fast",))


def edit(trials, environment, change, blocks=range(1000)):
    """Return the trials with ``change`` applied to the records of one environment."""
    edited = []
    for trial in trials:
        if trial.environment == environment and trial.block in blocks:
            record = json.loads(json.dumps(trial.document))
            change(record)
            trial = replace(trial, document=record)
        edited.append(trial)
    return edited


def flags_after(change, environment="fast", blocks=range(1000)):
    trials = edit(make_trials(PLAN, Machine({}), 8), environment, change, blocks)
    return estimate(PLAN, fold_trials(PLAN, trials), metrics=()).find("fast:cnn@local").flags


def test_a_folder_and_its_trials_fold_into_the_same_numbers(tmp_path):
    machine = Machine({"fast": 1.2}, outcome={"control": "timed_out"})
    folder = write_run(tmp_path / "run", PLAN, machine, 7)
    read, kept = read_measurements(folder, PLAN), fold_trials(PLAN, make_trials(PLAN, machine, 7))
    for name, values in kept.table.items():
        np.testing.assert_array_equal(read.table[name], values)
    assert read.facts["control:cnn@local"].outcomes == {"timed_out": 7}


def test_evidence_that_trials_share_is_counted_for_each_and_apart_if_it_differs(tmp_path):
    trials = make_trials(PLAN, Machine({}), 6)
    trials = edit(trials, "fast", lambda record: record["evidence"]["system"].update(kernel="other"), blocks=(1, 2))
    trials = edit(trials, "fast", lambda record: record["evidence"]["openmp"].update(threads=7), blocks=(2, 3, 4))
    trials = edit(trials, "fast", lambda record: record["evidence"]["system"].update(python="3.99"), blocks=(5,))
    folder = write_run(tmp_path / "run", PLAN, Machine({}), 0)
    folder.trials_file.write_text("".join(trial.line() + "\n" for trial in trials))
    read, kept = read_measurements(folder, PLAN), fold_trials(PLAN, trials)
    facts = read.facts["fast:cnn@local"]
    assert facts.evidence["system.kernel"]["other"] == 2
    assert facts.evidence["openmp.threads"]["7"] == 3
    assert sorted(facts.settled.values()) == [1, 2, 3]
    assert read.machine["system.kernel"]['"other"'] == 2
    assert (read.facts, read.machine) == (kept.facts, kept.machine)


def test_trials_share_their_evidence_however_many_values_of_single_trials_are_between():
    number = itertools.count()
    trials = list(make_trials(PLAN, Machine({}), 600))
    for environment in ("baseline", "control", "fast"):
        system = lambda: {"kernel": "6.1", "uptime_s": float(next(number)), "load_1m": 0.1}  # noqa: E731
        trials = edit(trials, environment, lambda record: record["evidence"].update(system=system()))  # noqa: B023
    lines = [f"{trial.line()}\n".encode() for trial in trials]
    reader = LineReader()
    trials = [reader.read(line, None, number) for number, line in enumerate(lines, 1)]
    fast = [trial for trial in trials if trial.environment == "fast"]
    assert len({id(trial.record.evidence.openmp) for trial in fast}) <= 2
    assert len({trial.conditions.uptime_s for trial in fast}) == len(fast) == 600


def test_measurements_may_be_read_at_any_time_and_keep_their_numbers():
    builder, trials = MeasurementBuilder(PLAN), list(make_trials(PLAN, Machine({}), 3))
    whole = fold_trials(PLAN, trials)
    parts = [(builder.add(trial), builder.measured())[1] for trial in trials]
    for count, part in enumerate(parts, 1):
        np.testing.assert_array_equal(part.trials.started, whole.trials.started[:count])
        np.testing.assert_array_equal(
            part.trials.primary["samples_per_s"], whole.trials.primary["samples_per_s"][:count]
        )


def test_a_report_reads_the_trials_once(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", PLAN, Machine({}), 7)
    reads, readings = [], RunFolder.readings
    monkeypatch.setattr(RunFolder, "readings", lambda *arguments: reads.append(1) or readings(*arguments))
    rows = write_report(folder.path).rows()
    assert len(reads) == 1
    assert rows == Result.of(folder).rows()
    assert len(reads) == 2


def test_raw_steps_are_cut_out_but_a_string_that_looks_like_them_is_not(tmp_path):
    folder = write_run(tmp_path / "run", PLAN, Machine({}), 2)
    *_, trial = make_trials(PLAN, Machine({}), 3)
    hostile = {**trial.document, "data": {"name": '"steps_ns":[1,2', "stand_in": True}}
    folder.append(replace(trial, document=hostile))
    facts = read_measurements(folder, PLAN).facts[trial.arm]
    assert facts.data['"steps_ns":[1,2'] == 1


def test_a_half_written_last_line_is_passed_over_and_a_damaged_one_is_named(tmp_path):
    folder = write_run(tmp_path / "run", PLAN, Machine({}), 2)
    with folder.trials_file.open("a") as file:
        file.write('{"schema": 1, "tri')
    assert read_measurements(folder, PLAN).trials.arm.size == 6
    with folder.trials_file.open("a") as file:
        file.write("\n")
    with pytest.raises(StoreError, match=r"trials\.jsonl:7"):
        read_measurements(folder, PLAN)


@pytest.mark.parametrize(
    "record",
    [None, {}, {"metrics": []}, {"metrics": {"samples_per_s": {}}, "evidence": 3, "result": "x", "data": 1}],
)
def test_a_strange_record_is_a_trial_without_numbers(record):
    measured = fold_trials(PLAN, [Trial("t", 0, 0, "fast", "cnn", "local", "ok", document=record)])
    assert np.isnan(measured.of("fast:cnn@local", "samples_per_s")).all()
    assert measured.facts["fast:cnn@local"].outcomes["ok"] == 1


def test_one_odd_value_takes_nothing_else_of_its_record_away(tmp_path):
    folder = write_run(tmp_path / "run", PLAN, Machine({}), 1)
    whole = read_measurements(folder, PLAN)
    body = folder.trials_file.read_text()
    folder.trials_file.write_text(
        body.replace('"loss":', '"loss":[],"was":').replace('"record":{"schema":1,', '"record":{')
    )
    odd = read_measurements(folder, PLAN)
    assert np.isnan(odd.table["loss"]).all()
    for name in set(whole.table) - {"loss"}:
        np.testing.assert_array_equal(odd.table[name], whole.table[name])
    assert odd.facts == whole.facts


def test_the_evidence_that_reports_show_has_one_value_at_each_path():
    assert all(kind_of(path) is not Kind.PART for path in EVIDENCE)


def test_differences_in_the_last_digits_are_equal_work():
    assert Flag.UNEQUAL_WORK not in flags_after(lambda r: r["result"].update(loss=r["result"]["loss"] * 1.004))


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["result"].update(loss=0.6),
        lambda r: r["result"].update(loss=0.1),
        lambda r: r["result"].update(loss=float("nan")),
        lambda r: r["result"].update(loss=None),
        lambda r: r["result"].update(accuracy=0.8),
        lambda r: r["result"].update(samples=640),
        lambda r: r["result"].update(parameters=3),
        lambda r: r["workload"].update(digest="sha256:other"),
    ],
)
@pytest.mark.parametrize("blocks", [range(1000), (4,)], ids=["every trial", "one trial"])
def test_other_work_is_flagged_even_when_only_one_trial_did_it(change, blocks):
    assert Flag.UNEQUAL_WORK in flags_after(change, blocks=blocks)


def test_a_reference_that_varies_widens_what_counts_as_equal():
    trials = list(make_trials(PLAN, Machine({}), 8))
    for block in (1, 2):
        trials = edit(trials, "control", lambda r, b=block: r["result"].update(loss=0.5 + 0.1 * b), (block,))
    trials = edit(trials, "fast", lambda r: r["result"].update(loss=0.65))
    assert Flag.UNEQUAL_WORK not in estimate(PLAN, fold_trials(PLAN, trials), metrics=()).find("fast:cnn@local").flags


def test_a_drifting_machine_does_not_raise_more_false_alarms_than_promised():
    result = simulated_false_alarms(20_000, blocks=8, seed=3)
    assert result.rate == pytest.approx(0.035, abs=0.006), "what is left of 5 % pays for stopping on precision"
    assert result.as_promised


def test_relabelling_real_trials_keeps_the_promised_rate():
    measured = fold_trials(PLAN, make_trials(PLAN, Machine({}, noise=0.05, drift=0.02), 20))
    result = relabelled_false_alarms(estimate(PLAN, measured, metrics=()), measured, 4000)
    assert result.comparisons == 4000
    assert result.low < 0.07


def test_relabelling_notices_nothing_where_there_is_no_control():
    measured = fold_trials(PLAN, make_trials(PLAN, Machine({}, outcome={"control": "failed"}), 8))
    assert relabelled_false_alarms(estimate(PLAN, measured, metrics=()), measured, 10).rate is None


def test_the_rates_interval_is_clopper_and_pearsons():
    rate = false_alarm_rate(5, 100)
    assert (rate.low, rate.high) == pytest.approx((0.016432, 0.112835), abs=1e-5)
    assert not false_alarm_rate(60, 400).as_promised

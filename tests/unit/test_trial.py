"""Conditions on a trial's record before the trial counts."""

import errno
import json
import os
import random
import time
from types import SimpleNamespace

import pytest

from bench.evidence import before_torch
from envmatrix.engines.base import log_of
from envmatrix.errors import EngineError, NoTrialError, StoreError
from envmatrix.evidence import checks
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.plan import Arm, Slot
from envmatrix.system.atomic_files import check_free_space
from envmatrix.system.process import Exit
from envmatrix.trials.execution import check_image_present, classify_outcome, run_trial
from envmatrix.trials.trial_evidence_verification import contradicting_ranks, contradicting_variables
from tests.synthetic import Machine, make_plan, make_run, record_of


def test_a_variable_must_be_in_the_process_as_the_environment_sets_it():
    seen = read_evidence({"variables": {"A": "1", "C": "3"}})
    assert contradicting_variables({"A": "1", "B": None}, seen) == []
    assert contradicting_variables({"A": "2", "B": "2", "C": None}, seen) == [
        "A should be '2', but the process saw '1'",
        "B should be '2', but the process saw None",
        "C should be None, but the process saw '3'",
    ]


def test_a_variable_that_the_record_hides_is_no_contradiction(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "x")
    seen = read_evidence({"variables": before_torch()["variables"]})
    assert seen.variables["MY_TOKEN"] == "(hidden)"
    assert contradicting_variables({"MY_TOKEN": "x"}, seen) == []
    assert contradicting_variables({"MY_TOKEN": None}, seen)
    assert contradicting_variables({"MY_TOKEN": "x"}, read_evidence({"variables": {}}))


@pytest.mark.parametrize(("source", "wrong"), [("outside", 0), ("probe", 1)])
def test_a_program_that_nobody_could_look_at_contradicts_nothing(source, wrong):
    assert len(contradicting_variables({"A": "1"}, read_evidence({"source": source, "variables": None}))) == wrong


@pytest.mark.parametrize(
    "odd",
    [{"evidence": ["x"]}, {"bench": ["x"]}, {"evidence": {"variables": ["x"]}}, {"evidence": {"parallel": ["x"]}},
     {"evidence": {"parallel": {"ranks": {"a": 1}}}}, {"evidence": {"parallel": {"ranks": ["x"]}}},
     {"evidence": {"parallel": {"ranks": [{"rank": 1, "evidence_differs": ["x"]}]}}}],
)  # fmt: skip
def test_a_record_of_another_shape_makes_the_trial_failed_not_the_run(tmp_path, odd):
    (tmp_path / "record.json").write_text(json.dumps({"schema": 1, **odd}))
    job = SimpleNamespace(mounts=SimpleNamespace(work=tmp_path), log=tmp_path / "log")
    outcome, reason, record, _ = classify_outcome(None, None, Exit(0, 1.0), job)
    assert (outcome, record) == ("failed", None)
    assert "its record is missing or unreadable" in reason


@pytest.mark.parametrize(
    ("change", "found", "why"),
    [
        (lambda record: None, "ok", ""),
        (lambda record: record["evidence"]["variables"].update(OMP_NUM_THREADS="1"), "invalid", "should be '2'"),
        (lambda record: record["bench"].update(digest="sha256:other"), "invalid", "another version of bench/"),
    ],
)
def test_a_trial_whose_settings_were_not_active_is_invalid(tmp_path, change, found, why):
    plan = make_plan(("fast",))
    slot = next(slot for slot in plan.block(0) if slot.arm.environment == "fast")
    record = record_of(slot, Machine({}), 4.0, random.Random(1))
    change(record)
    (tmp_path / "record.json").write_text(json.dumps(record))
    job = SimpleNamespace(mounts=SimpleNamespace(work=tmp_path), log=tmp_path / "log")
    outcome, reason, body, _ = classify_outcome(SimpleNamespace(run=make_run(plan)), slot, Exit(0, 1.0), job)
    assert (outcome, body) == (found, record)
    assert why in reason


def test_a_rank_without_a_number_contradicts_as_others_do():
    evidence = read_evidence({"parallel": {"ranks": [{"evidence_differs": {"malloc": {"library": "libc"}}}]}})
    assert len(contradicting_ranks([checks.parse_claim("malloc", ["libjemalloc"])], evidence)) == 1


def test_a_trial_that_its_engine_fails_costs_the_time_that_it_took_whatever_the_clock_says(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path))

    clock = iter([1_800_000_000.0, 1_700_000_000.0])

    def fail(*_, **__):
        monkeypatch.setattr("time.time", lambda: next(clock))  # the machine's clock is set back meanwhile
        time.sleep(0.05)
        raise EngineError("the daemon is gone")

    monkeypatch.setattr("envmatrix.trials.execution.make_job", fail)
    slot = Slot("b0000-p000", 0, 0, Arm("a", "a", "a", "w", "local", None), 0)
    trial = run_trial(SimpleNamespace(run=SimpleNamespace(skipped={}, name="r")), slot)
    assert (trial.outcome, trial.reason) == ("failed", "the daemon is gone")
    assert 0.05 <= trial.wall_s < 100


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_is_no_failure_of_a_trial(tmp_path, monkeypatch, number):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path))

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    slot = Slot("b0000-p000", 0, 0, Arm("a", "a", "a", "w", "local", None), 0)
    monkeypatch.setattr("envmatrix.trials.execution.make_job", refuse)
    with pytest.raises(StoreError, match=os.strerror(number)) as told:
        run_trial(SimpleNamespace(run=SimpleNamespace(skipped={}, name="r")), slot)
    assert "then `envmatrix resume`" in told.value.remedy
    with (
        pytest.raises(StoreError, match=os.strerror(number)),
        log_of(SimpleNamespace(log=SimpleNamespace(open=refuse))),
    ):
        pass
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(StoreError, match=os.strerror(number)):
        check_free_space(tmp_path)


def test_before_a_trial_an_image_that_is_gone_or_an_engine_that_cannot_say_is_no_trial():
    def gone(_):
        raise EngineError("the daemon is gone")

    job = SimpleNamespace(prepared=SimpleNamespace(image="image"))
    for holds, said in ((gone, "the daemon is gone"), (lambda _: False, "image image disappeared or was replaced")):
        with pytest.raises(NoTrialError, match=said):
            check_image_present(SimpleNamespace(holds=holds), job)
    check_image_present(SimpleNamespace(holds=lambda _: True), job)

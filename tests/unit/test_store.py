"""Nothing that was measured is ever lost, and what cannot be read is named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envmatrix.errors import StoreError
from envmatrix.plan import Plan, make_arms
from envmatrix.store import Run, RunFolder, Trial, trial_of, write_whole

PLAN = Plan("d", make_arms(("baseline", "a"), ("cnn",), ("local",), "baseline"), 1, 6, 40, 0.02, 0.03, 300.0)
RUN = Run("r", "2026-01-01", PLAN, "sha256:m", "sha256:b", {"name": "h"}, {"envmatrix": "0"}, {}, {})

BROKEN_TRIAL = '{"schema": 1, "trial": "t", "block": 0, "position": 0, %s}'


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "r")
    made.create(RUN)
    return made


def trials(number):
    return [trial_of(slot, "ok", wall_s=1.0, record={"x": [1, 2]}) for slot in PLAN.block(0)][:number]


def test_a_run_comes_back_as_it_was_written(folder):
    assert folder.load() == RUN


def test_trials_come_back_in_order(folder):
    for trial in trials(3):
        folder.append(trial)
    assert list(folder.trials()) == trials(3)


def test_a_half_written_last_line_is_set_aside_and_nothing_else_is_touched(folder):
    for trial in trials(3):
        folder.append(trial)
    whole = folder.trials_file.read_bytes()
    for cut in range(1, len(whole) - whole[:-1].rfind(b"\n") - 1):
        folder.trials_file.write_bytes(whole[:-cut])
        assert list(folder.trials()) == trials(2)
        assert folder.mend()
        assert not folder.mend()
        assert list(folder.trials()) == trials(2)
        folder.append(trials(3)[2])
        assert folder.trials_file.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{}", "no schema number"),
        ("[1]", "no schema number"),
        ('{"schema": 99}', "newer than this envmatrix"),
        ('{"schema": 1}', "no trial"),
        (BROKEN_TRIAL % '"node": [1]', "node is no text"),
        (BROKEN_TRIAL % '"record": [1]', "record is no object"),
        ("{", "damaged"),
        ("\x00\x00", "damaged"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_a_bad_line_is_named_with_its_number(folder, line, words):
    folder.append(trials(1)[0])
    with folder.trials_file.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(StoreError, match=words) as caught:
        list(folder.trials())
    assert "trials.jsonl:2" in str(caught.value)


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"schema": 1}', '{"schema": 2}', '{"schema": 1, "plan": 3}'])
def test_a_bad_run_file_is_named(folder, body):
    folder.run_file.write_text(body)
    with pytest.raises(StoreError, match=r"run\.json"):
        folder.load()


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("host",), [], "host is no object"),
        (("skipped",), None, "skipped is no object"),
        (("environments",), {"a": 3}, "environments.a is no object"),
        (("environments",), {"a": {"levels": {"malloc": ["x"]}}}, "environments.a.levels.malloc is no text"),
        (("workloads",), {"cnn": 1}, "workloads.cnn is no object"),
        (("design",), {"ladder": [[]]}, r"design.ladder\[0\] is no text"),
        (("plan", "min_blocks"), {}, "plan.min_blocks is no whole number"),
        (("plan", "margin"), -1, "plan.margin is no usable number"),
        (("plan", "margin"), float("nan"), "plan.margin is no usable number"),
        (("plan", "budget_s"), 10**400, "plan.budget_s is no usable number"),
        (("plan", "seed"), "1", "plan.seed is no whole number"),
        (("plan", "arms", 0, "name"), ["x"], r"plan.arms\[0\].name is no text"),
        (("command",), "ls", "command is no list"),
    ],
)
def test_what_is_wrong_in_a_run_file_is_named(folder, path, value, words):
    body = json.loads(folder.run_file.read_text())
    part = body
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    folder.run_file.write_text(json.dumps(body))
    with pytest.raises(StoreError, match=words):
        folder.load()


def test_a_second_writer_is_refused(folder):
    folder.lock()
    with pytest.raises(StoreError, match="another envmatrix"):
        RunFolder(folder.path).lock()


def test_a_full_disk_leaves_the_old_file_whole(tmp_path):
    target = tmp_path / "file"
    write_whole(target, "old")
    with pytest.raises(StoreError, match="No such file"):
        write_whole(tmp_path / "missing" / "file", "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@given(reason=st.text(), name=st.text(min_size=1))
def test_any_text_survives_a_line(tmp_path_factory, reason, name):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    trial = Trial("t", 0, 0, name, "w", "local", "failed", reason)
    folder.append(trial)
    assert folder.trials_file.read_bytes().count(b"\n") == 1
    assert list(folder.trials()) == [trial]


def test_unknown_keys_of_the_same_schema_are_passed_over(folder):
    folder.append(trials(1)[0])
    line = json.loads(folder.trials_file.read_text())
    folder.trials_file.write_text(json.dumps({**line, "later": 1}) + "\n")
    assert list(folder.trials()) == trials(1)

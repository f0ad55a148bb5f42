"""Lines of trials.jsonl that are not trials of the plan never count, and missing trials are reported."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.__main__ import main
from envmatrix.api.reproduction_packs import pack_run
from envmatrix.errors import StoreError
from envmatrix.launchers.local import Here
from envmatrix.report.report_data import summarise
from envmatrix.report.warning import WarningKind
from envmatrix.results import RunFolder
from envmatrix.runner import loop as runner
from envmatrix.stats.comparisons.between_runs import compare_runs
from envmatrix.stats.comparisons.environment_pairs import compare_environments
from envmatrix.stats.measurements import fold_trials, read_measurements
from envmatrix.stats.stopping.plan_deviations import skipped_slots
from envmatrix.trials import orphans
from tests.synthetic import Machine, copied, make_plan, make_trials, write_run
from tests.unit.test_runner import Watcher

PLAN = make_plan(("fast", "slow"), max_blocks=8, target=0.001, budget_s=1e9)
MACHINE = Machine({"fast": 1.2, "slow": 0.9})
DEFAULT = Path(__file__).parents[2] / "results" / "reference-default"


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run", PLAN, MACHINE, 8)


def changed(line, **keys):
    return json.dumps({**json.loads(line), **keys})


BAD = {
    "doubled": (lambda line: line, "b0002-p001 is already in line 10"),
    "doubled, with another outcome": (lambda line: changed(line, outcome="failed"), "is already in line 10"),
    "a name that the plan does not have": (
        lambda line: changed(line, trial="b0002-p009"),
        "b0002-p001 at position 1 of block 2, not 'b0002-p009'",
    ),
    "of another block": (lambda line: changed(line, block=3), "b0003-p001 at position 1 of block 3, not 'b0002-p001'"),
    "of no block": (lambda line: changed(line, block=-1), "block -1 is not in the plan, which has 8 blocks"),
    "after the last block": (lambda line: changed(line, block=8, trial="b0008-p001"), "block 8 is not in the plan"),
    "far away": (lambda line: changed(line, block=2**80), "is not in the plan, which has 8 blocks"),
    "at another place": (
        lambda line: changed(line, position=0),
        "b0002-p000 at position 0 of block 2, not",
    ),
    "at no place": (lambda line: changed(line, position=4), "position 4 is not in the plan: a block has 4 positions"),
    "of another environment": (lambda line: changed(line, environment="x"), "not x:cnn@local"),
    "of another workload": (lambda line: changed(line, workload="mlp"), ":mlp@local"),
    "of another engine": (lambda line: changed(line, engine="docker"), "@docker"),
}


def spoil(folder, change):
    """Insert a line made from line 10; return its number."""
    lines = folder.trials_file.read_text().splitlines()
    lines.insert(20, change(lines[9]))
    folder.trials_file.write_text("\n".join(lines) + "\n")
    return 21


@pytest.mark.parametrize(("change", "words"), BAD.values(), ids=BAD.keys())
def test_a_line_that_is_no_trial_of_the_plan_is_refused_by_its_place(folder, change, words):
    number = spoil(folder, change)
    for read in (lambda: read_measurements(folder, PLAN), lambda: list(folder.trials(PLAN))):
        with pytest.raises(StoreError) as caught:
            read()
        assert str(caught.value).startswith(f"{folder.trials_file}:{number}:1: this line is not a trial of this run: ")
        assert words in str(caught.value)
        assert "run `envmatrix resume`, which sets such lines aside" in caught.value.remedy


def test_a_line_doubled_in_the_reference_run_changes_no_headline(tmp_path, capsys):
    """Guards against a changed headline, which had a false explanation."""
    copy = tmp_path / "reference-default"
    shutil.copytree(DEFAULT, copy)
    RunFolder(copy).remove_partial_lines()
    lines = (copy / "trials.jsonl").read_text().splitlines(keepends=True)
    (copy / "trials.jsonl").write_text("".join([*lines, changed(lines[4], outcome="failed", reason="made up") + "\n"]))
    assert main(["report", "reference-default", "--results", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert f"trials.jsonl:{len(lines) + 1}:1: this line is not a trial of this run" in err
    assert "times as fast" not in out + err


def go_on(folder, plan=PLAN):
    """Resume with synthetic trials; return the messages and the trials that ran."""
    made = {trial.trial: trial for trial in make_trials(plan, MACHINE, plan.max_blocks)}
    run, said, begun = folder.load(), [], []
    experiment = SimpleNamespace(
        folder=folder, plan=plan, run=run, engines={"local": SimpleNamespace(sweep=lambda _: 0)}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVMATRIX_CACHE", str(folder.path.parent / "cache"))
        patch.setattr(orphans, "end_processes", lambda: 0)  # those of parallel tests
        patch.setattr(runner, "run_with_rebuild", lambda _, slot, _say: begun.append(slot.trial) or made[slot.trial])
        ended = runner.run(experiment, Here(), Watcher(), said.append)
    folder.unlock()
    return said, begun, ended


@pytest.mark.parametrize("change", [change for change, _ in BAD.values()], ids=BAD.keys())
def test_resume_sets_such_a_line_aside_and_nothing_is_lost(folder, change):
    whole = folder.trials_file.read_bytes()
    number = spoil(folder, change)
    bad = folder.trials_file.read_bytes().splitlines(keepends=True)[number - 1]
    said, begun, _ = go_on(folder)
    assert said[0].startswith(f"{folder.trials_file}:{number}: set aside, not a trial of this run: ")
    assert (begun, folder.trials_file.read_bytes()) == ([], whole)
    assert (folder.path / "trials.set-aside").read_bytes() == bad


def test_a_trial_whose_line_was_wrong_runs_again_even_when_the_budget_is_spent(tmp_path):
    plan = replace(PLAN, budget_s=1.0)
    folder = write_run(tmp_path / "run", plan, MACHINE, 5)
    lines = folder.trials_file.read_text().splitlines()
    lines[9] = changed(lines[9], environment="x")
    folder.trials_file.write_text("\n".join(lines) + "\n")
    said, begun, ended = go_on(folder, plan)
    assert begun == ["b0002-p001"]
    assert said[1] == "1 trial of earlier blocks has no line: running again"
    assert ended.outcomes == {"ok": 20}
    assert "budget" in ended.why
    assert not list(skipped_slots(plan, read_measurements(folder, plan)))


def without(folder, *gone):
    lines = folder.trials_file.read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["trial"] not in gone]
    assert len(kept) == len(lines) - len(gone)
    folder.trials_file.write_text("\n".join(kept) + "\n")


@pytest.mark.parametrize(
    "gone", [["b0000-p000"], ["b0003-p002", "b0005-p000"], ["b0007-p000"], [f"b0004-p00{n}" for n in range(4)]]
)
def test_trials_that_lack_among_those_that_ran_are_told(folder, gone):
    without(folder, *gone)
    (said,) = [caution for caution in summarise(folder).cautions if caution.kind is WarningKind.MISSING]
    assert said.text.startswith(f"{len(gone)} trial")
    assert f"{gone[0]} first" in said.text
    assert [slot.trial for slot in skipped_slots(PLAN, read_measurements(folder, PLAN))] == gone


def test_a_comparison_tells_of_trials_that_lack_too(folder):
    lines = folder.trials_file.read_text().splitlines(keepends=True)
    folder.trials_file.write_text("".join(lines[:5] + lines[6:]))
    run = folder.load()
    for found in (
        compare_environments(run, read_measurements(folder, run.plan), *(arm.environment for arm in run.arms[:2])),
        compare_runs(folder, copied(folder, "other")),
    ):
        assert any("trials.jsonl has 1 trial of the plan (b000" in text for text in found.cautions)


def test_a_run_whose_lines_are_no_trials_of_it_is_not_packed(folder, tmp_path):
    lines = folder.trials_file.read_text().splitlines(keepends=True)
    folder.trials_file.write_text("".join([*lines, lines[3]]))
    with pytest.raises(StoreError, match="is already in line 4"):
        pack_run(folder.path, output=tmp_path / "run.tar.gz")
    assert not (tmp_path / "run.tar.gz").exists()


def test_a_block_that_could_not_have_been_reached_is_told(tmp_path):
    plan = replace(PLAN, max_blocks=100_000)
    folder = write_run(tmp_path / "run", plan, MACHINE, 6)
    slot = plan.block(99_999)[0]
    line = folder.trials_file.read_text().splitlines()[0]
    arm = {"environment": slot.arm.environment, "trial": slot.trial, "block": slot.block, "position": 0}
    with folder.trials_file.open("a") as file:
        file.write(changed(line, **arm) + "\n")
    (said,) = [caution for caution in summarise(folder).cautions if caution.kind is WarningKind.MISSING]
    assert said.text.startswith("more than 100 trials of the plan (b0006-p000 first)")


def test_a_run_that_was_interrupted_lacks_nothing(tmp_path):
    trials = list(make_trials(PLAN, MACHINE, 8))
    for many in range(len(trials)):
        assert not list(skipped_slots(PLAN, fold_trials(PLAN, trials[:many])))


def test_an_arm_that_left_the_race_lacks_nothing_and_one_that_came_back_is_told(tmp_path):
    plan = replace(make_plan(("fast", "slow"), max_blocks=12, race=True), target=0.001, budget_s=1e9)
    left = [t for t in make_trials(plan, Machine({"slow": 0.4}), 10) if t.environment != "slow" or t.block < 6]
    assert not list(skipped_slots(plan, fold_trials(plan, left)))
    folder = write_run(tmp_path / "run", plan, Machine({"slow": 0.4}), 10)
    (told,) = [caution for caution in summarise(folder).cautions if caution.kind is WarningKind.AFTER_LEAVING]
    assert (told.subject, told.text[:30]) == ("slow:cnn@local", "4 trials (block 6 first) ran a")


def test_a_run_whose_blocks_run_side_by_side_is_resumed_as_ever(folder):
    without(folder, "b0003-p002")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Here, "width", 2)
        said, begun, _ = go_on(folder)
    assert (said, begun) == ([], ["b0003-p002"])

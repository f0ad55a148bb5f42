"""A missing module of a program is reported in every arm of the first block, including copies of the baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.results import RunFolder
from envmatrix.runner.first_block_warnings import FirstBlockCheck
from envmatrix.trials.experiment_setup import Experiment
from tests.synthetic import Machine, make_environment, make_plan, make_run, make_trials


def told(tmp_path, environment, last_words, **more):
    """Return the messages about an environment's first trial, which fails with this output."""
    plan = make_plan(("fast",))
    workloads = {"cnn": Workload(name="cnn", command=("python", "train.py"), files=str(tmp_path))}
    image = Image("mine", interpreter="/v/bin/python") if more else Image("default")
    environments = {name: make_environment(name, image=image) for name in ("baseline", "fast")}
    run = make_run(plan, environments=environments, workloads=workloads, **more)
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    machine = Machine({}, outcome={environment: "failed"})
    trial = next(one for one in make_trials(plan, machine, 1) if one.environment == environment)
    (folder.logs / f"{trial.trial}.log").write_text(last_words)
    return FirstBlockCheck(Experiment(run, folder, {}, {}, tmp_path, tmp_path), 1).add(trial)


@pytest.mark.parametrize("environment", ["baseline", "control", "fast"])
def test_a_module_that_is_missing_is_told_whichever_arm_fails_first(tmp_path, environment):
    said = told(tmp_path, environment, "ModuleNotFoundError: No module named 'torch'\n")
    assert any("cnn runs in a fresh Python" in line for line in said)


OF_A_SEARCH = ("tune", "x", "001-screen-x", "--matrix", "matrix.yaml", "--")


@pytest.mark.parametrize("command", [("bench", "--", "python", "train.py"), OF_A_SEARCH])
def test_a_program_of_the_command_line_is_told_of_options_and_not_of_keys_of_a_matrix(tmp_path, monkeypatch, command):
    """Guards against advice to edit a matrix (`pass_env: [...]`, `interpreter`) for a program without one."""
    monkeypatch.setenv("CORPUS", "/data")
    words = "KeyError: 'CORPUS'\nModuleNotFoundError: No module named 'timm'\n"
    said = "\n".join(told(tmp_path, "baseline", words, command=command))
    assert "CORPUS" in said.partition("start again with --pass-env ")[2]
    assert "(-- .venv/bin/python ...), or add requirements on top (-r requirements.txt)" in said
    assert "`" not in said


def test_what_a_block_takes_is_told_when_all_that_take_turns_have_ended(tmp_path):
    """Guards against 9 s instead of 10: interleaved trials start one after the other and live for less than a block."""
    plan = make_plan(("fast", "slow", "twin"), budget_s=50.0)
    first = FirstBlockCheck(Experiment(make_run(plan), RunFolder(tmp_path), {}, {}, tmp_path, tmp_path), 1)
    said = [
        first.add(replace(trial, started=1e9 + 2 * trial.position, wall_s=10.0 - 2 * trial.position, together=5))
        for trial in make_trials(plan, Machine({}), 1)
    ]
    assert said[:-1] == [[]] * 4
    assert "a trial takes about 2s, a block of 5 about 10s" in said[-1][0]


@pytest.mark.parametrize(("trial_run_s", "is_told"), [(0.0, False), (4.0, False), (9.0, True)])
def test_trials_much_shorter_than_the_trial_run_may_do_less_work(tmp_path, trial_run_s, is_told):
    """Guards against numbers of a program that finds the checkpoint of its trial run in /tmp and stops at once."""
    plan = make_plan(("fast",))
    experiment = Experiment(make_run(plan), RunFolder(tmp_path), {}, {}, tmp_path, tmp_path, trial_run_s)
    trials = [replace(trial, wall_s=2.0) for trial in make_trials(plan, Machine({}), 1)]
    first = FirstBlockCheck(experiment, 1)
    said = [line for trial in trials for line in first.add(trial) if "trials do less work" in line]
    assert len(said) == is_told
    assert not said or "the trial run took 9s, and a trial without settings 2s" in said[0]

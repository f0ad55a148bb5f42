"""A program that misses a module says so in every arm of the first block, the copies of the baseline among them."""

from __future__ import annotations

import pytest

from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.runner.first_block import FirstBlock
from envmatrix.store import RunFolder
from envmatrix.trials.experiment import Experiment
from tests.synthetic import Machine, make_environment, make_plan, make_run, make_trials


@pytest.mark.parametrize("environment", ["baseline", "control", "fast"])
def test_a_module_that_is_missing_is_told_whichever_arm_fails_first(tmp_path, environment):
    plan = make_plan(("fast",))
    environments = {name: make_environment(name, image=Image("default")) for name in ("baseline", "fast")}
    workloads = {"cnn": Workload(name="cnn", command=("python", "train.py"))}
    run = make_run(plan, environments=environments, workloads=workloads)
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    machine = Machine({}, outcome={environment: "failed"})
    trial = next(one for one in make_trials(plan, machine, 1) if one.environment == environment)
    (folder.logs / f"{trial.trial}.log").write_text("ModuleNotFoundError: No module named 'torch'\n")
    said = FirstBlock(Experiment(run, folder, {}, {}, tmp_path, tmp_path), 1).add(trial)
    assert any("cnn runs in a Python of its own" in line for line in said)

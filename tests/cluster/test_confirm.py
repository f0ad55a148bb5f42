"""``explain --confirm`` on a real Slurm: the run is measured again by the launcher that measured it."""

import json

import pytest

from tests.step_runs import PROGRAM, PROGRAM_MATRIX, replace_trials

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_a_named_cause_is_confirmed_on_the_cluster_of_the_run(project):
    (project.folder / "matrix.yaml").write_text(PROGRAM_MATRIX.replace("metric:", "files: programs, metric:"))
    (project.folder / "programs" / "train.py").write_text(PROGRAM)
    done = project.run("bench", "--name", "mine", "--launcher", "slurm", "--nodelist", "n2", "--quiet")
    assert done.returncode == 0, done.stderr
    replace_trials(project.folder / "results" / "mine", {"some": {"minor_faults": -990.0, "kernel": -4.0}})
    done = project.run("explain", "mine", "some", "--confirm", "--max-blocks", "1", "--json")
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)["confirmations"]
    assert answer["by"] == "baseline+malloc-glibc-tuned"
    trials = project.trials()
    assert {trial["environment"] for trial in trials} == {"baseline", "control", "some", answer["by"]}
    assert {(trial["node"], trial["outcome"]) for trial in trials} == {("n2", "ok")}

"""``explain --confirm``: a stored run is measured again, next to an environment that changes only the named cause."""

import json

import pytest

from tests.step_runs import PROGRAM, PROGRAM_MATRIX, replace_trials

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]

CAUSE = "memory is returned to Linux and faulted in again"


@pytest.fixture
def stored(project):
    """Return a project with a real run, whose trials are replaced by those of an environment with fewer page faults."""
    (project.folder / "matrix.yaml").write_text(PROGRAM_MATRIX)
    (project.folder / "train.py").write_text(PROGRAM)
    done = project.run("bench", "--name", "mine", "--quiet")
    assert done.returncode == 0, done.stderr
    write_trials(project, {"some": {"minor_faults": -990.0, "kernel": -4.0}})
    return project


def write_trials(project, changes):
    replace_trials(project.folder / "results" / "mine", changes)


def test_it_runs_the_program_in_an_environment_that_is_the_baseline_with_one_level_more(stored):
    done = stored.run("explain", "mine", "some", "--confirm", "--max-blocks", "2", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (answer,) = told["confirmations"]
    assert (answer["cause"], answer["by"]) == (CAUSE, "baseline+malloc-glibc-tuned")
    assert (answer["confirmed"], answer["environment_s"]["low"] is not None) == (None, True)
    assert answer["not_known"] == "no verdict for some in this run: a verdict needs 6 blocks, and there are 2"
    assert told["run"] == "mine-confirm"
    trials = [json.loads(line) for line in (stored.folder / "results/mine-confirm/trials.jsonl").open()]
    names = ("baseline", "some", "baseline+malloc-glibc-tuned", "control")
    assert {(trial["environment"], trial["block"]) for trial in trials} == {(n, b) for n in names for b in (0, 1)}
    assert {trial["outcome"] for trial in trials} == {"ok"}
    tuned = next(trial for trial in trials if trial["environment"] == answer["by"])
    assert tuned["record"]["evidence"]["malloc"]["options"]["trim_threshold"] == 536870912
    more = stored.run("resume", "mine-confirm", "--max-blocks", "3", "--budget", "10m", "--quiet")
    assert more.returncode == 0, more.stderr


def refused(project, *words):
    done = project.run("explain", *words)
    assert done.returncode == 2, done.stderr
    assert [path.name for path in (project.folder / "results").iterdir()] == ["mine"], "nothing was started"
    return done.stderr


def test_what_cannot_be_repeated_here_is_told_before_anything_starts(stored):
    run = stored.folder / "results/mine/run.json"
    whole, program = run.read_text(), stored.folder / "train.py"
    assert "add --confirm" in refused(stored, "mine", "--budget", "1m")
    program.rename(stored.folder / "elsewhere.py")
    assert "train.py was deleted" in refused(stored, "mine", "--confirm")
    program.write_text(PROGRAM)
    document = json.loads(whole)
    document["host"]["cpu_model"] = "another CPU"
    run.write_text(json.dumps(document))
    assert "was measured on another machine: processor another CPU, here " in refused(stored, "mine", "--confirm")
    run.write_text(whole)
    write_trials(stored, {"some": {"user": 4.0}})
    assert "nothing to confirm: some:mine@local: no cause of its difference is named" in refused(stored, "--confirm")
    write_trials(stored, {"some": {"minor_faults": 990.0, "kernel": 4.0}})
    assert f"no level changes only this: {CAUSE}" in refused(stored, "mine", "some", "--confirm")

"""A user's own program, unchanged, in real environments."""

import json
import sys

import pytest

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]

MATRIX = """
version: 1
factors:
  torch: {{"2.13.0": {{requirements: [torch==2.13.0, torchvision==0.28.0, numpy], index: "https://download.pytorch.org/whl/cpu"}}}}
  malloc:
    glibc: {{claims: {{malloc: libc}}}}
    jemalloc: {{apt: libjemalloc2, preload: libjemalloc.so.2, claims: {{malloc: libjemalloc}}}}
environments: {{baseline: {{}}, jemalloc: {{malloc: jemalloc}}}}
workloads:
  good:
    command: [python, train.py, "a 'b' $HOME;x"]
    metric: {{regex: 'speed ([0-9.]+)', better: higher}}
    files: mine
  file: {{command: [python, train.py, x], metric: {{json_file: "out.json:speed", better: higher}}, files: mine}}
  silent: {{command: [python, -c, "print(1)"], metric: {{regex: 'speed ([0-9.]+)'}}}}
  endless: {{command: [python, -c, "import time; print('x' * 9999999); time.sleep(600)"], metric: {{wall: true}}}}
designs:
  one: {{environments: [jemalloc], workloads: {workload}, max_blocks: 1, trial_limit: {limit}}}
"""
PROGRAM = """
import json, sys, torch
import beside
torch.ones(8).sum()
print("speed 1.5 at first"); print("speed", beside.SPEED)
json.dump({"speed": 7.5, "said": sys.argv[1]}, open("out.json", "w"))
"""


def outcomes(project, workload, limit="100s"):
    (project.folder / "mine").mkdir(exist_ok=True)
    (project.folder / "mine" / "train.py").write_text(PROGRAM)
    (project.folder / "mine" / "beside.py").write_text("SPEED = 42.5\n")
    (project.folder / "mine" / "out.json").write_text('{"speed": 1}')  # left by an earlier run by hand
    (project.folder / "matrix.yaml").write_text(MATRIX.format(workload=workload, limit=limit))
    done = project.run("bench", "one", "--quiet")
    assert "one-2" in done.stderr, done.stderr
    assert max(map(len, done.stderr.splitlines())) < 400, "what a log holds may be long, what is shown is not"
    assert "Traceback" not in done.stderr
    return done.returncode, project.trials()


@pytest.mark.parametrize(("workload", "value"), [("good", 42.5), ("file", 7.5)])
def test_its_metric_and_evidence_are_read_without_a_change_to_it(project, workload, value):
    code, trials = outcomes(project, workload)
    assert (code, [trial["outcome"] for trial in trials]) == (0, ["ok"] * 3)
    assert {trial["record"]["metrics"]["value"] for trial in trials} == {value}
    owners = {trial["environment"]: trial["record"]["evidence"]["malloc"]["library"] for trial in trials}
    assert owners["jemalloc"] == "libjemalloc"
    if workload == "file":
        kept = json.loads((project.folder / "mine" / "out.json").read_text())
        assert kept == {"speed": 1}, "what it writes stays in the trial's own folder"


def test_a_program_that_never_says_how_fast_it_was_fails_with_that_reason(project):
    code, trials = outcomes(project, "silent")
    assert code == 4
    assert "metric not found" in trials[0]["reason"]


def test_a_program_that_prints_without_end_and_never_ends_is_bounded(project):
    code, trials = outcomes(project, "endless", limit="3s")
    assert (code, {trial["outcome"] for trial in trials}) == (4, {"timed_out"})
    sizes = [file.stat().st_size for file in (project.newest() / "logs").iterdir()]
    assert max(sizes) < 3_000_000


def test_init_writes_a_matrix_that_runs_as_it_is(project):
    (project.folder / "matrix.yaml").unlink()
    words = ["python", "train.py", "--name", 'it\'s "$5"']
    assert project.run("init", "--interpreter", sys.executable, "--", *words).returncode == 0
    listed = project.run("list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert json.loads(listed.stdout)["workloads"]["train"] == " ".join(words)
    again = project.run("init")
    assert again.returncode == 2
    assert "already exists" in again.stderr


NOTHING_LEFT = f"""
version: 2
factors:
  python: {{mine: {{interpreter: "{sys.executable}"}}}}
  malloc: {{glibc: {{}}, gone: {{preload: /nowhere/libx.so}}}}
  word: {{none: {{}}, some: {{env: {{WORD: some}}}}}}
environments: {{baseline: {{}}, gone: {{malloc: gone}}, also: {{malloc: gone, word: some}}, word: {{word: some}}}}
workloads: {{mine: {{command: [python, -c, "print(1)"], metric: {{wall: true}}}}}}
designs: {{default: {{environments: [ENVIRONMENTS], workloads: mine, max_blocks: 1, schedule: sequential}}}}
"""


def test_a_design_of_which_only_the_references_are_available_is_not_measured(project):
    (project.folder / "matrix.yaml").write_text(NOTHING_LEFT.replace("ENVIRONMENTS", "gone, also"))
    done = project.run("bench")
    assert done.returncode == 4
    assert "none of gone, also is available on this machine: gone: no such file: /nowhere/libx.so" in done.stderr
    assert project.trials() == []
    (project.folder / "matrix.yaml").write_text(NOTHING_LEFT.replace("ENVIRONMENTS", "gone, word"))
    assert project.run("bench").returncode == 0
    assert {trial["environment"] for trial in project.trials() if trial["outcome"] == "ok"} == {
        "baseline", "control", "word"
    }  # fmt: skip

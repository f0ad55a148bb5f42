"""Levels that say how Slurm's srun binds a trial: the CPUs of every rank prove it."""

import json

import pytest

from tests.cluster.test_slurm import SLURM, done_once

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
LEVELS = """
  bind:
    none: {}
    second: {srun: --cpu-bind=map_cpu:1, claims: {cpu.affinity_list: "1"}}
    core: {srun: [--cpu-bind=cores, --cpus-per-task=1, --mem-bind=local], claims: {cpu.affinity_list: "0"}}
    wrong: {srun: --cpu-bind=map_cpu:1, claims: {cpu.affinity_list: "0"}}
environments:
  second: {bind: second}
  core: {bind: core}
  wrong: {bind: wrong}
"""
DESIGN = "\n  bound: {environments: [second, core, wrong], workloads: short, max_blocks: 1, budget: 60m}\n"


@pytest.fixture
def binding(project):
    text = (project.folder / "matrix.yaml").read_text().rstrip()
    (project.folder / "matrix.yaml").write_text(text.replace("environments:\n", LEVELS.lstrip("\n"), 1) + DESIGN)
    return project


def test_a_level_binds_a_trial_as_srun_does_and_its_affinity_proves_it(binding):
    done = binding.run("bench", "bound", *SLURM)
    assert done.returncode == 3, done.stderr
    trials = {trial["environment"]: trial for trial in done_once(binding)}
    assert {name: trial["outcome"] for name, trial in trials.items()} == {
        "baseline": "ok", "control": "ok", "second": "ok", "core": "ok", "wrong": "invalid",
    }  # fmt: skip
    cpus = {name: trial["record"]["evidence"]["cpu"]["affinity_list"] for name, trial in trials.items()}
    assert (cpus["second"], cpus["core"]) == ("1", "0")
    assert cpus["baseline"] not in ("0", "1")
    assert binding.left() == []


def test_the_affinity_of_every_rank_is_that_of_its_level(binding):
    done = binding.run("bench", "bound", *SLURM, "--workloads", "both", "--environments", "second")
    assert done.returncode == 0, done.stderr
    (trial,) = (trial for trial in done_once(binding) if trial["environment"] == "second")
    ranks = trial["record"]["evidence"]["parallel"]["ranks"]
    assert [(part["node"], part["affinity"]) for part in ranks] == [("n1", [1]), ("n2", [1])]


def test_without_slurm_such_an_environment_is_skipped_with_the_reason(binding):
    done = binding.run("bench", "bound", "--environments", "second")
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "`srun: --cpu-bind=map_cpu:1` needs `--launcher slurm`" in " ".join(done.stderr.split())


def test_the_dry_run_shows_them_in_the_order(binding):
    done = binding.run("bench", "bound", *SLURM, "--dry-run", "--environments", "core")
    order = "".join(line.removeprefix("# ") for line in done.stdout.partition("# The order:\n")[2].splitlines())
    srun = {trial["title"]: trial["srun"] for part in json.loads(order)["parts"] for trial in part["trials"]}
    assert [words for title, words in srun.items() if title.startswith("core")] == [
        ["--cpu-bind=cores", "--cpus-per-task=1", "--mem-bind=local"]
    ]

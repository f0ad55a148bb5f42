"""Odd properties of a process, and variables that its shell set or not, are reported with their cause."""

from __future__ import annotations

import sys
from dataclasses import replace
from shlex import quote

import pytest

from envmatrix.evidence import checks
from envmatrix.evidence.notices import preload_openmp_and_binding_problems
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.plan.environment import Environment, Image
from envmatrix.report.report_data import summarise_measurements
from envmatrix.report.warning import WarningKind
from envmatrix.stats.measurements import fold_trials
from envmatrix.trials.trial_evidence_verification import verify_evidence
from envmatrix.trials.user_program.passed_variables import describe_shell_variables
from tests.synthetic import Machine, make_plan, make_run, make_trials
from tests.unit.test_proof import evidence_of

WORK = "sum(i * i for i in range(10**6))"
TORCH, SKLEARN = "/s/torch/lib/libgomp.so.1", "/s/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0"
CPU = {"affinity_before": [0, 1], "affinity_end": [0, 1], "thread_affinity": {"0-1": 3}}


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({"libraries": [SKLEARN, TORCH]}, "2 copies of an OpenMP runtime are loaded, each with its own threads: "
         "s/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0 and torch/lib/libgomp.so.1"),
        ({"cpu": {**CPU, "thread_affinity": {"0": 3}}}, "all of its 3 threads are bound to CPU 0, one of the 2"),
        ({"cpu": {**CPU, "affinity_end": [0], "thread_affinity": {"0": 1, "1": 1}}, "openmp": {"library": "libgomp"},
          "variables": {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}},
         "libgomp (OMP_PROC_BIND=close, OMP_PLACES=cores) bound the first thread to 1 of 2 CPUs. "
         "Processes that the program forks, such as data loader workers, are bound in the same way"),
        ({"cpu": {**CPU, "affinity_end": [0], "thread_affinity": {"0": 1, "1": 1}}, "variables": {}},
         "the program or one of its libraries (not a variable) bound the first thread to 1 of 2 CPUs"),
    ],
)  # fmt: skip
def test_it_is_told_with_its_cause(evidence, words):
    (text,) = preload_openmp_and_binding_problems(read_evidence(evidence))
    assert words in text


@pytest.mark.parametrize(
    "evidence",
    [
        {}, {"cpu": CPU, "libraries": [TORCH, "/i/libiomp5.so"]}, {"cpu": {**CPU, "thread_affinity": {"0": 1}}},
        {"cpu": {"affinity_before": [0], "affinity_end": [0], "thread_affinity": {"0": 4}}},
        {"cpu": {**CPU, "thread_affinity": {"0": 1, "1": 1}}}, {"cpu": {**CPU, "affinity_end": None}},
    ],
)  # fmt: skip
def test_of_what_is_as_it_should_be_nothing_is_told(evidence):
    assert list(preload_openmp_and_binding_problems(read_evidence(evidence))) == []


def test_threads_that_share_one_cpu_prove_no_number_of_them():
    two = Environment("e", "", {}, Image("i"), {}, (), checks.parse_claims({"threads": ["2"]}))
    seen = {"torch": {"threads": 2}, "openmp": {"library": "libgomp", "workers": {"libgomp": 1}}, "cpu": CPU}
    assert verify_evidence(two, read_evidence(seen)).unproven == ()
    found = verify_evidence(two, read_evidence({**seen, "cpu": {**CPU, "thread_affinity": {"0": 3}}}))
    assert found.wrong == ()
    assert found.unproven == ("all its threads may run only on CPU 0: not verified that so many did the work",)


def test_a_report_tells_it_once_for_all_environments_of_which_it_is_so():
    plan = make_plan(("fast", "sound"))
    trials = []
    for trial in make_trials(plan, Machine({}, noise=0.01), 6):
        evidence = {**trial.document["evidence"], "libraries": [SKLEARN, TORCH]}
        trials.append(replace(trial, document={**trial.document, "evidence": evidence}))
    found = summarise_measurements(make_run(plan), fold_trials(plan, trials)).cautions
    (told,) = [caution for caution in found if caution.kind is WarningKind.ODDITY]
    assert "2 copies of an OpenMP runtime" in told.text
    assert {"baseline", "fast", "sound"} <= {name.partition(":")[0] for name in told.subject.split(", ")}


def test_a_library_that_the_loader_cannot_preload_into_a_program_is_told(tmp_path):
    found = evidence_of(tmp_path, ["sh", "-c", f"LD_PRELOAD=/not/there.so {sys.executable} -c {quote(WORK)}"])
    assert found.lost_preloads == ["/not/there.so"]
    assert (
        "LD_PRELOAD in it names /not/there.so, which the loader could not load"
        in preload_openmp_and_binding_problems(found)
    )


def test_what_a_shell_sets_is_told_at_the_first_run_and_in_the_report(monkeypatch):
    passed = ("OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "PATH", "DATA_DIR")
    for name in ("LD_PRELOAD", *passed[:2]):
        monkeypatch.delenv(name, raising=False)
    assert describe_shell_variables(passed) == []
    for name, value in {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "LD_PRELOAD": "/my/lib.so"}.items():
        monkeypatch.setenv(name, value)
    first, second = describe_shell_variables(passed)
    assert first.startswith("your shell sets MALLOC_ARENA_MAX=2, OMP_NUM_THREADS=1: every environment gets it")
    assert second.startswith("your shell's LD_PRELOAD (/my/lib.so) is not passed to any run")
    plan = make_plan(("fast",))
    run = make_run(plan, shell_preload="/my/lib.so")
    workloads = {name: one.model_copy(update={"pass_env": passed}) for name, one in run.workloads.items()}
    measured = fold_trials(plan, make_trials(plan, Machine({}, noise=0.01), 6))
    told = summarise_measurements(run.model_copy(update={"workloads": workloads}), measured).cautions
    texts = [caution.text for caution in told if caution.kind is WarningKind.SHELL]
    assert texts == [
        "every environment inherited its MALLOC_ARENA_MAX, OMP_NUM_THREADS, unless a level sets it",
        "no environment inherited its LD_PRELOAD (/my/lib.so)",
    ]

"""Tests of every shipped level with faked settings: its checks must fail if it has no effect."""

import json
import os
from pathlib import Path

import pytest

from envmatrix.evidence.settings_fingerprint import settled
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.plan.environment import resolve_environment
from envmatrix.trials.trial_evidence_verification import verify_evidence
from tests.shipped_levels import ALREADY, environment, levels, matrix


@pytest.fixture(scope="module")
def plain(python, data_dir, tmp_path_factory):
    """Return the evidence of a short training run without any setting."""
    import subprocess

    record = tmp_path_factory.mktemp("plain") / "record.json"
    argv = [python, "-W", "ignore", "-m", "bench", "run", f"--record={record}", f"--data-dir={data_dir}", "--steps=3",
            "--warmup-steps=1", "--eval-samples=64"]  # fmt: skip
    base = {"PATH": os.environ["PATH"], "HOME": str(record.parent), "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "2"}  # fmt: skip
    subprocess.run(argv, cwd=Path(__file__).parents[2], env=base, check=True, capture_output=True, timeout=300)
    return read_evidence(json.loads(record.read_text())["evidence"])


@pytest.mark.parametrize(("factor", "name"), list(levels()))
def test_a_level_that_does_nothing_is_found_out(plain, factor, name):
    """Only the variables are set, as the level would set them; its checks must notice that nothing else changed."""
    wanted = environment(factor, name, cpus=1)  # no level requires something that a run without it has
    seen = dict(plain.variables or {}, **{key: value for key, value in wanted.variables.items() if value is not None})
    for key in wanted.variables:
        if wanted.variables[key] is None:
            seen.pop(key, None)
    fake = plain.model_copy(update={"variables": seen})
    said = verify_evidence(wanted, fake)
    best_here = factor == "isa" and name.endswith("avx2") and plain.torch.cpu_capability == "AVX2"  # no AVX-512 here
    this_python = factor == "python" and plain.system.python.startswith(f"{name}.")
    so_many = factor == "threads" and name == str(plain.torch.threads)
    if ((factor, name) in ALREADY or best_here or this_python or so_many) and not said.wrong:
        return
    assert said.wrong or said.unproven, f"{factor}={name} passes where it did nothing"


def test_evidence_of_the_same_settings_is_one_text_and_of_others_another(plain):
    again = plain.model_copy(update={"openmp": plain.openmp.model_copy(update={"workers": {"libgomp": 9}})})
    assert settled(again) == settled(plain)
    other = plain.model_copy(update={"openmp": plain.openmp.model_copy(update={"spin_count": "0"})})
    assert settled(other) != settled(plain)


def test_the_team_that_worked_is_the_serving_runtimes(plain):
    assert plain.openmp.workers == {"libgomp": 1}


def test_a_runtime_that_nobody_used_is_unproven_and_one_beside_it_is_invalid(plain):
    wanted = resolve_environment(matrix(), "intel-omp", {"physical_cores": "1", "logical_cpus": "1"})
    preloaded = {"/x/libiomp5.so": "/x/libiomp5.so"}
    for workers, wrong, unproven in (({"libiomp5": 1}, 0, 0), ({}, 0, 1), ({"libgomp": 1}, 1, 0)):
        openmp = plain.openmp.model_copy(update={"library": "libiomp5", "workers": workers})
        said = verify_evidence(wanted, plain.model_copy(update={"openmp": openmp, "preloaded": preloaded}))
        assert (len(said.wrong), len(said.unproven)) == (wrong, unproven), said

"""Tests that need a GPU. Without one, only the levels that a CUDA build of PyTorch reports are tested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from envmatrix.matrix.parse import parse
from envmatrix.system.resource_paths import bundled_matrix_file
from tests.gpu.conftest import MATRIX, ROOT, Project

#: Levels that PyTorch reports without a GPU, and levels that need one.
WITHOUT = (("cuda-allocator", "expandable"), ("cuda-allocator", "max-split-128"), ("cuda-allocator", "collect-at-80"),
           ("gpu-blas", "cublaslt"), ("gpu-blas", "tunableop"), ("gpu-linalg", "cusolver"))  # fmt: skip
WITH = (("cuda-allocator", "async"), ("cuda-loading", "eager"), ("cuda-loading", "lazy"), ("tf32", "off"),
        ("tf32", "on"), ("gpu-placement", "near"))  # fmt: skip


def test_every_level_of_cuda_with_a_claim_is_held_against_a_process_here() -> None:
    factors = parse(MATRIX, bundled_matrix_file()).factors
    names = ("cuda-allocator", "cuda-loading", "tf32", "gpu-blas", "gpu-linalg", "gpu-placement")
    claiming = {(name, level) for name in names for level, body in factors[name].levels.items() if body.claims}
    assert claiming == {*WITHOUT, *WITH}


def evidence_of(project: Project, factor: str, level: str) -> subprocess.CompletedProcess[str]:
    matrix = project.folder / f"{factor}-{level}.yaml"
    body = f"{{torch: host, {factor}: {json.dumps(level)}}}"
    matrix.write_text(MATRIX.replace("environments: {", f"environments: {{mine: {body}, "))
    return project.run("evidence", "mine", "--matrix", matrix.name)


@pytest.mark.parametrize(("factor", "level"), WITHOUT)
def test_a_level_is_read_back_from_pytorch_without_a_gpu(anywhere: Project, factor: str, level: str) -> None:
    done = evidence_of(anywhere, factor, level)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.parametrize(("factor", "level"), WITH)
def test_a_level_is_read_back_on_a_gpu(project: Project, factor: str, level: str) -> None:
    done = evidence_of(project, factor, level)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_without_a_gpu_a_design_for_gpus_never_runs_on_the_cpu(anywhere: Project) -> None:
    if anywhere.gpus:
        pytest.skip("there is a GPU")
    done = anywhere.run("bench", "cuda", "--name", "refused", "--max-blocks", "1")
    assert (done.returncode, "GPU" in done.stderr) == (4, True), done.stderr


def test_the_design_of_cuda_variables_runs_and_its_report_has_a_verdict_for_each(project: Project) -> None:
    done = project.run("bench", "cuda", "--name", "cuda", "--budget", "6m", "--max-blocks", "3", "--min-blocks", "2")
    assert done.returncode == 0, done.stderr
    assert {trial["outcome"] for trial in project.trials("cuda")} == {"ok"}
    shown = project.run("report", "cuda", "--json")
    assert {"cuda-expandable", "cuda-no-tf32"} <= set(shown.stdout.split('"'))
    seen = project.trials("cuda")[0]["record"]["evidence"]["cuda"]
    assert seen["nvml"]["devices"][0]["clocks"]["sm_mhz"] > 0


def test_interleaved_processes_share_the_gpu_if_the_design_asks_for_it(project: Project) -> None:
    matrix = project.folder / "turns.yaml"
    workload = "{device: cuda, batch_size: 64, steps: 60}"
    design = "{environments: [mine], workloads: short, gpus: all, schedule: turns, budget: 3m}"
    text = MATRIX.replace("environments: {", "environments: {mine: {torch: host, cuda-allocator: expandable}, ")
    matrix.write_text(f"{text}workloads: {{short: {workload}}}\ndesigns: {{shared: {design}}}\n")
    done = project.run("bench", "shared", "--matrix", "turns.yaml", "--name", "shared", "--max-blocks", "2")
    assert done.returncode == 0, done.stderr
    assert {(trial["outcome"], trial["together"] is None) for trial in project.trials("shared")} == {("ok", False)}


@pytest.mark.parametrize("options", [("--autocast", "bfloat16"), ("--autocast", "float16"), ("--compile", "inductor"),
                                     ("--channels-last", "true"), ("--cuda-graphs", "true")])  # fmt: skip
def test_an_option_of_a_workload_works_on_a_gpu(project: Project, options: tuple[str, str]) -> None:
    record = project.folder / "record.json"
    argv = [
        project.python,
        "-m",
        "bench",
        "run",
        "--device",
        "cuda",
        "--steps",
        "20",
        "--record",
        str(record),
        *options,
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(record.read_text())
    assert said["skipped"] is None
    assert said["metrics"]["peak_gpu_bytes"] > 0


def test_a_program_of_ones_own_is_measured_and_tuned_on_a_gpu(project: Project) -> None:
    """Its processes are not interleaved, because all of a block would use GPU memory at the same time."""
    metric = ("--metric-regex", "speed ([0-9.]+)")
    done = project.run("bench", "--name", "own", "--max-blocks", "3", "--min-blocks", "3", *metric, "--",
                       project.python, "train.py")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {trial["together"] for trial in project.trials("own")} == {None}
    tuned = project.run("tune", "--name", "tuned", "--budget", "4m", *metric, "--", project.python, "train.py")
    assert tuned.returncode == 0, tuned.stderr


@pytest.mark.parametrize(("how", "told"), [("too-much", "out of memory"), ("bad-index", "assert")])
def test_a_program_that_fails_on_a_gpu_is_told_in_its_own_words(project: Project, how: str, told: str) -> None:
    done = project.run("bench", "--name", how, "--max-blocks", "1", "--", project.python, "train.py", how)
    assert done.returncode != 0
    assert told in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stderr.splitlines()[0]


def used_bytes(project: Project) -> int:
    code = "from bench.evidence import cuda; print(cuda.nvml_evidence()['devices'][0]['memory']['used_bytes'])"
    return int(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True))


def test_a_killed_process_leaves_no_memory_and_one_that_holds_some_is_seen(project: Project) -> None:
    before = used_bytes(project)
    held = subprocess.Popen([project.python, "train.py", "hold"], cwd=project.folder, stdout=subprocess.PIPE, text=True)
    try:
        assert held.stdout
        assert held.stdout.readline() == "held\n"
        assert used_bytes(project) - before >= 2**30
    finally:
        os.kill(held.pid, signal.SIGKILL)
        held.wait(30)
    for _ in range(50):
        if used_bytes(project) - before < 2**28:
            return
        time.sleep(0.2)
    pytest.fail("a killed process still holds memory of the GPU")


def run_all_reduce(project: Project, name: str, *environments: str) -> list[dict[str, Any]]:
    """Run all-reduce with one process for each GPU there is, and return its trials."""
    matrix = project.folder / "nccl.yaml"
    levels = "".join(f"{level}: {{torch: host, nccl: {level}}}, " for level in environments)
    workload = f"{{device: cuda, collective: all-reduce, processes: {project.gpus}, steps: 50}}"
    design = f"{{environments: [{', '.join(environments)}], workloads: exchange, gpus: all, budget: 3m}}"
    text = MATRIX.replace("environments: {", f"environments: {{{levels}")
    matrix.write_text(f"{text}workloads: {{exchange: {workload}}}\ndesigns: {{exchange: {design}}}\n")
    done = project.run("bench", "exchange", "--matrix", "nccl.yaml", "--name", name, "--max-blocks", "2")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return project.trials(name)


def test_nccl_starts_on_every_gpu_there_is_and_its_version_is_read_back(project: Project) -> None:
    """One GPU exchanges nothing, but NCCL has to load, to find the GPU and to start."""
    for trial in run_all_reduce(project, "nccl-start"):
        evidence = trial["record"]["evidence"]
        assert (evidence["parallel"]["backend"], len(evidence["parallel"]["ranks"])) == ("nccl", project.gpus)
        assert evidence["collectives"]["nccl_version"] in evidence["collectives"]["nccl_built_with"]


def test_nccl_works_between_the_gpus_and_says_what_it_took(project: Project) -> None:
    if project.gpus < 2:
        pytest.skip(f"{project.gpus} GPU: one rank proves nothing of NCCL's settings")
    trials = run_all_reduce(project, "nccl", "ring", "no-p2p")
    ring = next(trial for trial in trials if trial["environment"] == "ring")
    assert ring["record"]["evidence"]["parallel"]["nccl"]["NCCL_ALGO"] == "Ring"

"""An older PyTorch (Debian bookworm's 1.13.1) in a container: what runs, and what is skipped for which reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.build.paths import BuildPaths
from envmatrix.engines.docker import DockerEngine
from tests.accounts import check_account
from tests.engines.conftest import demand

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]
SHORT = "steps: 2, warmup_steps: 1, eval_samples: 100"
MATRIX = f"""
version: 1
factors:
  torch: {{debian-1.13.1: {{suite: bookworm, apt: [python3-torch], env: {{OMP_WAIT_POLICY: PASSIVE}}}}}}
environments: {{baseline: {{}}}}
workloads:
  lstm: {{model: lstm, optimizer: adam, accumulation: 2, profile_steps: 1, {SHORT}}}
  bf16: {{model: lenet5, autocast: bfloat16, channels_last: true, loader: dataloader, {SHORT}}}
  int8: {{task: inference, model: fashion-cnn, quantize: static, pretrain_steps: 3, {SHORT}}}
  pruned: {{task: inference, model: mlp, prune: structured, guard: inference_mode, pretrain_steps: 3, {SHORT}}}
  compiled: {{model: mlp, compile: inductor, drop_last: true, {SHORT}}}
  fp16: {{model: mlp, autocast: float16, {SHORT}}}
  resnet: {{model: resnet18, {SHORT}}}
designs:
  default: {{workloads: [lstm, bf16, int8, pruned, compiled, fp16, resnet], schedule: sequential, max_blocks: 1,
    budget: 15m}}
"""
SKIPPED = {"compiled": "torch 2.0", "fp16": "torch 2.3", "resnet": "torchvision"}


def test_every_workload_runs_or_is_skipped_with_its_reason(ground: BuildPaths, tmp_path: Path) -> None:
    demand(DockerEngine(ground).unavailable())
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    argv = [sys.executable, "-m", "envmatrix", "bench", "--engine", "docker", "--name", "old", "--quiet"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in (tmp_path / "results/old/trials.jsonl").read_text().splitlines()]
    assert len(trials) == 14
    for trial in trials:
        if trial["workload"] in SKIPPED:
            assert trial["outcome"] == "skipped"
            assert SKIPPED[trial["workload"]] in trial["reason"]
        else:
            assert trial["outcome"] == "ok", trial["reason"]
            check_account(trial)
            assert trial["record"]["evidence"]["torch"]["version"].startswith(
                "1.13."
            )  # Debian's build has the version 1.13.0a0

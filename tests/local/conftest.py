"""Fixtures for real runs in real venvs; builds stay in the user's cache, so later sessions are quick."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import held

PROJECT = Path(__file__).parents[2]
#: Waiting threads sleep: nothing is measured here, and spinning ones are ten times slower on a busy machine.
TINY = """
version: 1
factors:
  torch:
    "2.13.0":
      requirements: [torch==2.13.0, torchvision==0.28.0, numpy]
      index: "https://download.pytorch.org/whl/cpu"
      env: {OMP_WAIT_POLICY: PASSIVE}
  malloc:
    glibc: {claims: {malloc: libc}}
    jemalloc: {apt: libjemalloc2, preload: libjemalloc.so.2, claims: {malloc: libjemalloc}}
    liar: {claims: {malloc: libtcmalloc}}
  threads: {default: {}, one: {env: {OMP_NUM_THREADS: 1}, claims: {threads: 1}}}
  word: {none: {}, some: {env: {WORD: some}}, other: {env: {WORD: other}}}
environments:
  baseline: {}
  jemalloc: {malloc: jemalloc}
  liar: {malloc: liar}
  one-thread: {threads: one}
  some: {word: some}
  other: {word: other}
workloads:
  tiny: {model: fashion-cnn, steps: 3, warmup_steps: 1, eval_samples: 64}
  endless: {model: fashion-cnn, steps: 1000000}
  # What a trial does is nothing to a run that is stopped: this one only waits.
  toy: {command: [python, wait.py, HELD, "0"], metric: {wall: true}, files: programs}
designs:
  tiny: {environments: [jemalloc, one-thread], workloads: tiny, min_blocks: 2, max_blocks: 2, budget: 10m, target: 0.1%,
    schedule: sequential}
  toy: {environments: [some, other], workloads: toy, min_blocks: 2, max_blocks: 2, budget: 10m, target: 0.1%}
  turns: {environments: [one-thread], workloads: tiny, turn: 2, min_blocks: 2, max_blocks: 2}
  lying: {environments: [liar], workloads: tiny, schedule: sequential, max_blocks: 1, budget: 10m}
  endless: {environments: [], workloads: [endless, toy], schedule: sequential, max_blocks: 1, trial_limit: 6s,
    budget: 10m}
"""


class Project:
    """A folder with a matrix.yaml, in which the real command runs."""

    #: What Python is given to be the command.
    how = ("-m", "envmatrix")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = held.Held(folder / "held")
        (folder / "matrix.yaml").write_text(TINY.replace("HELD", str(self.held.folder)))
        (folder / "programs").mkdir()
        (folder / "programs" / "wait.py").write_text(held.PROGRAM)
        (folder / "containers").symlink_to(PROJECT / "containers")

    def start(self, *arguments: str, **more: object) -> "subprocess.Popen[str]":
        argv = [sys.executable, *self.how, *arguments]
        return subprocess.Popen(
            argv,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ),
            **more,
        )

    def run(self, *arguments: str, limit_s: float = 560) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments)
        out, err = process.communicate(timeout=limit_s)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def newest(self) -> Path:
        return max((self.folder / "results").glob("*/run.json"), key=lambda file: file.stat().st_mtime).parent

    def trials(self) -> list:
        if not list((self.folder / "results").glob("*/run.json")):
            return []
        file = self.newest() / "trials.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)

"""Fixtures: a project folder and a real Slurm of two nodes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import held
from tests.cluster import gridengine_daemons, slurm_daemons, ssh_hosts
from tests.cluster.slurm_daemons import wait_for

PROJECT = Path(__file__).parents[2]
MATRIX = """
version: 1
factors:
  torch:
    "2.13.0":
      requirements: [torch==2.13.0, torchvision==0.28.0, numpy]
      index: "https://download.pytorch.org/whl/cpu"
      env: {OMP_WAIT_POLICY: PASSIVE}  # nothing is measured here, and spinning threads are slow on a busy machine
  threads: {default: {}, one: {env: {OMP_NUM_THREADS: 1}, claims: {threads: 1}}}
environments:
  baseline: {}
  one-thread: {threads: one}
workloads:
  tiny: {model: mlp, steps: 3, warmup_steps: 1, eval_samples: 64}
  # What a job does is nothing to the faults that are provoked: these trials end at once, or when a test lets them.
  short: {command: [python, wait.py, HELD, "0"], metric: {wall: true}, files: programs}
  endless: {command: [python, wait.py, HELD, "3600"], metric: {wall: true}, files: programs}
  both: {parallel: ddp, processes: 2, nodes: 2, steps: 3, warmup_steps: 1, eval_samples: 64, verify_steps: 3}
  both-long: {parallel: ddp, processes: 2, nodes: 2, steps: 60, warmup_steps: 1, eval_samples: 64}
  both-endless: {parallel: ddp, processes: 2, nodes: 2, steps: 1000000}
designs:
  tiny:
    environments: one-thread
    workloads: tiny
    min_blocks: 2
    max_blocks: 2
    budget: 60m
    target: 0.1%
    schedule: sequential
    slurm: {nodes: 2, nodelist: [n1, n2], options: --licenses=machine:1}
  short: {environments: baseline, workloads: short, schedule: sequential, min_blocks: 2, max_blocks: 2, budget: 60m,
    target: 0.1%}
  endless: {environments: baseline, workloads: endless, schedule: sequential, min_blocks: 2, max_blocks: 2, budget: 60m,
    target: 0.1%}
"""
#: The command. Users share a batch system, so it waits longer and longer until it looks at its jobs again; not here.
COMMAND = """
CHANGES
import runpy
from envmatrix.launchers.batch_system import BatchSystem
BatchSystem.polls = (0.3, 1.0)
runpy.run_module("envmatrix", run_name="__main__", alter_sys=True)
"""


def command(changes=""):
    """Return the arguments of Python for the command, with statements that change it."""
    return ["-c", COMMAND.replace("CHANGES", changes)]


def _started(reason, make):
    """Start daemons, yield them, and end them; skip if something is missing for them."""
    if reason and os.environ.get("ENVMATRIX_REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    made = make()
    try:
        made.start()
        yield made
    finally:
        made.close()
    assert made.left() == []


@pytest.fixture(scope="session")
def cluster():
    """Slurm of two nodes."""
    yield from _started(slurm_daemons.missing(), slurm_daemons.Cluster)


@pytest.fixture(scope="session")
def hosts(small_disk):
    """Two hosts with sshd; they see the disk, as it is mounted before."""
    yield from _started(ssh_hosts.missing(), ssh_hosts.Hosts)


@pytest.fixture(scope="session")
def grid(small_disk):
    """Grid Engine of two hosts; they see the disk, as it is mounted before."""
    yield from _started(gridengine_daemons.missing(), gridengine_daemons.GridEngine)


@pytest.fixture(scope="session")
def small_disk(tmp_path_factory):
    """A folder on a disk of one megabyte; None if none can be mounted here."""
    folder = tmp_path_factory.mktemp("small")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    mounted = subprocess.run(mount, check=False).returncode == 0
    yield folder if mounted else None
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Project:
    """A folder with a matrix.yaml, in which the real command runs against the real Slurm."""

    #: Folders with packages that extend envmatrix.
    packages = ()

    def __init__(self, folder, cluster):
        self.folder = folder
        self.cluster = cluster
        (folder / "programs").mkdir(parents=True, exist_ok=True)
        self.held = held.Held(folder / "held")
        (folder / "programs" / "wait.py").write_text(held.PROGRAM)
        (folder / "matrix.yaml").write_text(MATRIX.replace("HELD", json.dumps(str(self.held.folder))))
        (folder / "containers").symlink_to(PROJECT / "containers")

    @property
    def variables(self):
        return {**self.cluster.variables, "PYTHONPATH": os.pathsep.join([str(PROJECT), *self.packages])}

    def wait_for_word(self):
        """Make trials wait for a file; return (the file that a running trial creates, the file to wait for)."""
        here, go = self.folder / "here", self.folder / "go"
        text = f"import os, time\nopen({str(here)!r}, 'w')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        (self.folder / "programs" / "wait.py").write_text(text)
        return here, go

    def start(self, *arguments, before=(), changes="", **more):
        argv = [*before, sys.executable, *command(changes), *arguments]
        return subprocess.Popen(
            argv, cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**self.variables, **more},
        )  # fmt: skip

    def run(self, *arguments, **more):
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=600)
        assert "Traceback" not in err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def newest(self):
        return max((self.folder / "results").glob("*/run.json"), key=lambda file: file.stat().st_mtime).parent

    def trials(self):
        """Return the trials of the newest run, with the real names of the nodes; without a half-written last line."""
        try:
            lines = (self.newest() / "trials.jsonl").read_text().split("\n")[:-1]
            hosts = json.loads((self.newest() / "names.json").read_text())["hosts"]
        except (OSError, ValueError):
            return []
        real = {shown: name for name, shown in hosts.items()}
        return [json.loads(re.sub(r"\bnode-\d+\b", lambda match: real[match[0]], line)) for line in lines]

    def started(self):
        """Return (trial, node) of every trial started so far."""
        files = sorted((self.folder / "results").glob("*/*/b[0-9]*/starts"))
        return [(row[0], row[4]) for file in files for row in map(str.split, file.read_text().splitlines())]

    def hear(self, process, words):
        """Read the tool's stderr until these words appear, and return the text."""
        said = b""
        while words.encode() not in said:
            piece = os.read(process.stderr.fileno(), 4096)
            assert piece, said.decode()
            said += piece
        return said.decode()

    def runners(self):
        """Return the block runners of this project's runs, which are Python with -I."""
        found, folder = [], str(self.folder / "results").encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            ours = b"-I" in words and any(word.startswith(folder) and b"/order-" in word for word in words)
            found += [int(path.parent.name)] if ours else []
        return found

    def kill_runners(self):
        for pid in self.runners():
            os.kill(pid, signal.SIGKILL)

    def left(self):
        """Return the command lines of processes that still run or are stopped, and belong to this project's runs."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
                dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            ours = any(str(path).encode() in words for path in (self.folder / "results", self.held.folder))
            found += [words] if ours and not dead else []
        return found

    def wait_for(self, condition, seconds=400.0):
        wait_for(condition, seconds, "what the test waits for")


@pytest.fixture
def project(tmp_path, cluster):
    yield Project(tmp_path / "pro ject", cluster)
    cluster.clean()

"""Fixtures for whole runs of a tiny program without torch, started as a user would: real engines, real kills."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envmatrix.results import RunFolder
from envmatrix.system import resource_paths as places
from tests.engines.conftest import write_wheel

#: Folders that a test's cache shares with the user's: downloads and bases are large.
_SHARED = ("apt", "bases", "packages", "pythons", "tools", "uv", "wheelhouse")
MATRIX = """
version: 1
factors:
  image: {plain: {requirements: [tinypkg]}}
  colour: {none: {}, red: {env: {COLOUR: red}}}
environments: {baseline: {}, red: {colour: red}}
workloads:
  toy: {command: [python, toy.py, "0.1", FAULTS-MARK], metric: {regex: "speed ([0-9.]+)"}, files: program}
  long: {command: [python, toy.py, "600", FAULTS-MARK], metric: {regex: "speed ([0-9.]+)"}, files: program}
  held: {command: [python, toy.py, held, FAULTS-MARK], metric: {regex: "speed ([0-9.]+)"}, files: program}
  spin: {command: [python, toy.py, spin, FAULTS-MARK], files: program}
designs:
  toy: {environments: [red], workloads: toy, min_blocks: 2, max_blocks: 4, budget: 10m, target: 0.01%}
  long: {environments: [], workloads: long, max_blocks: 1, budget: 10m, trial_limit: 3s}
  endless: {environments: [], workloads: long, max_blocks: 1, budget: 10m, trial_limit: 300s}
  turns: {environments: [red], workloads: spin, schedule: turns, turn: 1, min_blocks: 2, max_blocks: 3, budget: 10m,
          target: 0.01%}
  held: {environments: [red], workloads: held, min_blocks: 2, max_blocks: 2, budget: 10m, trial_limit: 300s}
"""
ENGINES = [
    "local",
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("apptainer", marks=pytest.mark.apptainer),
]
#: Ignores all catchable signals, as do its daemon and child. `held` ends when a test lets it; `spin` uses four turns of
#: a tenth of a second. Its speed is random: no run of it is precise enough to end before its plan.
PROGRAM = """
import os, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
beside = "import time; time.sleep(600)  # FAULTS-MARK"
subprocess.Popen([sys.executable, "-c", beside], start_new_session=True)
subprocess.Popen([sys.executable, "-c", beside])
if sys.argv[1] == "held":
    signal.sigwait([signal.SIGUSR1])
elif sys.argv[1] == "spin":
    while time.process_time() < 0.4:
        pass
else:
    time.sleep(float(sys.argv[1]))
print("speed", 1 + os.urandom(1)[0] / 256)
"""


def running(mark: str) -> list[int]:
    """Return the processes of the toy program with ``mark`` in their command line, in containers too."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes()
        except OSError:
            continue
        if mark.encode() in words:
            found.append(int(file.parent.name))
    return found


def until(condition: Callable[[], Any], seconds: float = 200.0) -> Any:
    """Wait until a condition is true and return its value; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came so far")


class Toy:
    """A folder with a matrix.yaml, in which the real command runs with a separate cache."""

    def __init__(self, folder: Path, cache: Path, variables: dict[str, str]) -> None:
        self.folder, self.cache = folder, cache
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.started: list[subprocess.Popen[str]] = []
        self.variables = {**os.environ, **variables, "ENVMATRIX_CACHE": str(cache)}
        (folder / "program").mkdir(parents=True)
        (folder / "matrix.yaml").write_text(MATRIX.replace("FAULTS-MARK", self.mark))
        (folder / "program" / "toy.py").write_text(PROGRAM.replace("FAULTS-MARK", self.mark))

    def name_image(self, name: str) -> None:
        """Give the toy's image a name of its own, for tests that change the image."""
        file = self.folder / "matrix.yaml"
        file.write_text(file.read_text().replace("plain", name))

    def start(self, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        argv = [*before, sys.executable, "-m", "envmatrix", *arguments]
        process = subprocess.Popen(
            argv, cwd=self.folder, env=self.variables, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    @property
    def newest(self) -> Path | None:
        found = sorted((self.folder / "results").glob("*/run.json"), key=lambda file: file.stat().st_mtime)
        return found[-1].parent if found else None

    def trials(self) -> list[dict[str, Any]]:
        file = self.newest / "trials.jsonl" if self.newest else None
        lines = file.read_bytes().split(b"\n")[:-1] if file and file.exists() else []
        return [json.loads(line) for line in lines]

    def planned(self) -> list[str]:
        assert self.newest
        return [slot.trial for block in RunFolder(self.newest).load().plan.blocks() for slot in block]

    def block(self) -> list[str]:
        """Return the trials of the first block."""
        assert self.newest
        return [slot.trial for slot in next(iter(RunFolder(self.newest).load().plan.blocks()))]

    def left(self) -> list[int]:
        """Return the trial's processes that still run; all have the mark among their arguments."""
        return running(self.mark)

    def at_work(self) -> bool:
        """Return whether the program has started its two daemons."""
        return len(running(f"# {self.mark}")) == 2

    def programs(self) -> list[int]:
        """Return the held programs, without their wrappers, whose arguments name the same file."""
        found = []
        for pid in self.left() if self.at_work() else ():
            with contextlib.suppress(OSError):
                if (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")[1] == b"toy.py":
                    found.append(pid)
        return found

    def let_end(self) -> None:
        """Let the held trial end once it is running, and wait until it is recorded."""
        before = len(self.trials())
        os.kill(until(lambda: self.programs() or self.ended(), 400)[0], signal.SIGUSR1)
        until(lambda: len(self.trials()) > before)

    def ended(self) -> None:
        """Fail with the stderr of the command that was started last if it has ended."""
        process = self.started[-1]
        if process.poll() is not None:
            assert process.stderr
            raise AssertionError(f"it ended with {process.returncode}: {process.stderr.read()}")

    def let_all_end(self, process: subprocess.Popen[str]) -> str:
        """Let the trials end one after the other until all are recorded; return the tool's stderr."""
        while len(self.trials()) < len(self.planned()):
            self.let_end()
        return process.communicate(timeout=200)[1]

    def end(self) -> None:
        """End what a failing test left running, which would hold the machine's lock against the next test."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.cache / "work", ignore_errors=True)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with the user's downloads, but separate images, locks and work folders."""
    root = tmp_path_factory.mktemp("faults") / "cache"
    root.mkdir()
    users = places.cache_folder()
    for name in _SHARED:
        (users / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(users / name)
    return root


@pytest.fixture(scope="session")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables with which pip finds only a wheel of a few bytes."""
    wheels = tmp_path_factory.mktemp("wheels")
    write_wheel(wheels, "tinypkg", "1.0", {"tinypkg/__init__.py": b"VERSION = '1.0'\n"})
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}


@pytest.fixture
def toy(tmp_path: Path, cache: Path, variables: dict[str, str]) -> Iterator[Toy]:
    """Yield a project, then end any process that a failing test left running."""
    made = Toy(tmp_path / "toy", cache, variables)
    yield made
    made.end()

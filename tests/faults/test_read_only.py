"""Results that are temporarily unwritable: the run waits, and loses nothing of the trial that ran meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.engines.conftest import demand
from tests.faults.conftest import ENGINES, Toy, until

pytestmark = [pytest.mark.local, pytest.mark.timeout(400)]


SHORT = ("--environments", "baseline", "--max-blocks", "1")


def own_mounts() -> str | None:
    """Return why a process cannot have its own mounts here, or None."""
    if os.getuid():
        return "mounts of our own need root"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.stderr.decode().strip() or None


def inside(pid: int, *argv: str) -> None:
    """Run a command in the mount namespace of a process."""
    subprocess.run(["nsenter", f"--target={pid}", "--mount", *argv], check=True, timeout=60)


@pytest.mark.parametrize("engine", ENGINES)
def test_results_that_are_read_only_for_a_while_are_waited_for(toy: Toy, engine: str) -> None:
    demand(own_mounts())
    results = str(toy.folder / "results")
    process = toy.start("bench", "held", "--engine", engine, *SHORT, before=("unshare", "--mount"))
    held = until(toy.programs, 400)
    inside(process.pid, "mount", "--bind", results, results)  # above the mount with the trial's open log
    inside(process.pid, "mount", "-o", "remount,bind,ro", results)
    os.kill(held[0], signal.SIGUSR1)
    said = process.stderr
    assert said
    told = until(lambda: next((line for line in iter(said.readline, "") if "retrying for at most" in line), "it ended"))
    assert "Read-only file system; retrying for at most" in told
    inside(process.pid, "umount", results)
    until(lambda: len(toy.trials()) == 1)
    err = toy.let_all_end(process)
    assert process.returncode == 0, err
    assert [(trial["trial"], trial["outcome"]) for trial in toy.trials()] == [(name, "ok") for name in toy.planned()]

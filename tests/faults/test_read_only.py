"""Results that cannot be written for a while are waited for: nothing of the trial that ran meanwhile is lost."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.engines.conftest import demand
from tests.faults.conftest import Toy, until

pytestmark = [pytest.mark.local, pytest.mark.timeout(400)]
WAITS = """
import os, time
open("{here}", "w").close()
while not os.path.exists("{go}"):
    time.sleep(0.02)
print("speed", 1)
"""


def own_mounts() -> str | None:
    """Say why no process can have mounts of its own here, None where it can."""
    if os.getuid():
        return "mounts of our own need root"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.stderr.decode().strip() or None


def inside(pid: int, *argv: str) -> None:
    """Run a command where a process has its mounts."""
    subprocess.run(["nsenter", f"--target={pid}", "--mount", *argv], check=True, timeout=60)


def test_results_that_are_read_only_for_a_while_are_waited_for(toy: Toy) -> None:
    demand(own_mounts())
    here, go, results = toy.folder / "here", toy.folder / "go", str(toy.folder / "results")
    (toy.folder / "program" / "toy.py").write_text(WAITS.format(here=here, go=go))
    process = toy.start("bench", "endless", "--engine", "local", before=("unshare", "--mount"))
    until(here.exists, 200)
    inside(process.pid, "mount", "--bind", results, results)  # above the one in which the trial's log is open
    inside(process.pid, "mount", "-o", "remount,bind,ro", results)
    go.touch()
    said = process.stderr
    assert said
    told = until(lambda: next((line for line in iter(said.readline, "") if "waiting until" in line), "it ended"))
    assert "trials.jsonl: Read-only file system; waiting until it can be written" in told
    inside(process.pid, "umount", results)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert [(trial["trial"], trial["outcome"]) for trial in toy.trials()] == [(name, "ok") for name in toy.planned()]

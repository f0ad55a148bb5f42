"""A trial that slept through a part of its time is not counted: it is told, and runs again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import ENGINES, Toy, running, until

pytestmark = [pytest.mark.timeout(400)]
#: Stops itself, unless somebody has said that it need not.
STOPS = """
import os, signal
if not os.path.exists("again.txt"):
    os.kill(os.getpid(), signal.SIGSTOP)
print("speed", 1)
"""


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_trial_that_was_stopped_for_a_while_is_told_and_runs_again(toy: Toy, engine: str) -> None:
    (toy.folder / "program" / "toy.py").write_text(STOPS)
    process = toy.start("bench", "endless", "--engine", engine)
    stopped = until(lambda: [pid for pid in running(toy.mark) if state(pid) == "T"], 200)
    (toy.folder / "program" / "again.txt").touch()
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "b0000-p000 was stopped for a while as it ran: it runs again" in err
    assert [(trial["outcome"], trial["repeated"]) for trial in toy.trials()] == [("ok", 1), ("ok", 0)]

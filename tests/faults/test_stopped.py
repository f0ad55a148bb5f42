"""A trial that was stopped for a part of its time does not count: this is reported, and it runs again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from envmatrix.engines.docker_api import connect
from tests.faults.conftest import ENGINES, Toy, running, until

pytestmark = [pytest.mark.timeout(400)]
#: Stops itself unless the file again.txt exists.
STOPS = """
import os, signal
if not os.path.exists("again.txt"):
    os.kill(os.getpid(), signal.SIGSTOP)
print("speed", 1)
"""

#: Waits in its work folder until it may end, unless the file again.txt exists.
WAITS = """
import os, time
if not os.path.exists("again.txt"):
    open("ready", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
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
    check_told(toy, process)


def waiting(toy: Toy) -> Path:
    """Return the work folder of the waiting trial; the next trial will not wait."""
    (ready,) = until(lambda: list(toy.cache.glob("work/**/ready")))
    (toy.folder / "program" / "again.txt").touch()
    return ready.parent


def let_go(toy: Toy) -> None:
    """Let the waiting trial end, through its own view of its folder: an overlay does not see what is written below."""
    seen = [Path("/proc") / str(pid) / "cwd" for pid in running(toy.mark)]
    next(folder for folder in seen if (folder / "ready").exists()).joinpath("go").touch()


def check_told(toy: Toy, process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "b0000-p000 was paused while it ran: running it again" in err
    assert [(trial["outcome"], trial["repeated"]) for trial in toy.trials()] == [("ok", 1), ("ok", 0)]


@pytest.mark.docker
def test_a_container_that_somebody_paused_is_told_and_runs_again(toy: Toy) -> None:
    (toy.folder / "program" / "toy.py").write_text(WAITS)
    process = toy.start("bench", "endless", "--engine", "docker")
    work = waiting(toy)
    with contextlib.closing(connect()) as client:
        mounted = {mount["Source"]: one for one in client.containers.list() for mount in one.attrs["Mounts"]}
        mounted[str(work)].pause()
        mounted[str(work)].unpause()
    let_go(toy)
    check_told(toy, process)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """Yield a control group of version 2."""
    roots = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
    root = next((root for root in roots if (root / "cgroup.controllers").exists()), None)
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no control group of version 2 can be made here")
    made = root / f"envmatrix-{uuid.uuid4()}"
    made.mkdir()
    yield made
    until(lambda: "populated 0" in (made / "cgroup.events").read_text(), 60)
    made.rmdir()


def test_a_control_group_that_somebody_froze_is_told_and_its_trial_runs_again(toy: Toy, group: Path) -> None:
    (toy.folder / "program" / "toy.py").write_text(WAITS)
    enter = ("sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh")
    process = toy.start("bench", "endless", "--engine", "local", before=enter)
    waiting(toy)
    (group / "cgroup.freeze").write_text("1")
    until(lambda: "frozen 1" in (group / "cgroup.events").read_text())
    (group / "cgroup.freeze").write_text("0")
    until(lambda: "frozen 0" in (group / "cgroup.events").read_text())
    let_go(toy)
    check_told(toy, process)


def test_supervisors_that_were_stopped_when_the_tool_was_killed_are_swept_by_the_next_start(toy: Toy) -> None:
    process = toy.start("bench", "endless", "--engine", "local")
    until(toy.at_work)
    everything = below(process.pid)
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.communicate()
    assert {state(pid) for pid in everything} == {"T"}
    again = toy.run("bench", "toy", "--engine", "local", "--max-blocks", "1")
    assert again.returncode == 0, again.stderr
    assert [pid for pid in everything if state(pid)] == []
    assert toy.left() == []


def below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [*found, *(deeper for child in found for deeper in below(child))]

"""Everything that a trial started ends with it: the toy program and its daemons ignore polite signals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import ENGINES, Toy, until

pytestmark = [pytest.mark.timeout(600)]


def wrapper(toy: Toy) -> list[int]:
    """Return the process that supervises the program from inside the trial."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        run = toy.newest
        program, _, rest = words.partition(b"/bench/__main__.py\0command\0")
        if run and program and rest and f"/{run.name}/".encode() in variables:
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_a_trial_past_its_limit_ends_with_its_daemons(toy: Toy, engine: str) -> None:
    done = toy.run("bench", "long", "--engine", engine)
    assert done.returncode == 4, done.stderr
    assert [(trial["outcome"], trial["ended_before"]) for trial in toy.trials()] == [("timed_out", 0)]
    assert toy.left() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_when_only_the_wrapper_or_only_the_program_is_killed_all_of_the_trial_ends(toy: Toy, engine: str) -> None:
    for killed in (lambda: wrapper(toy), toy.programs):
        process = toy.start("bench", "endless", "--engine", engine, "--quiet")
        until(toy.programs, 400)
        os.kill(until(killed)[0], signal.SIGKILL)
        process.communicate(timeout=200)
        assert [(trial["outcome"], trial["ended_before"]) for trial in toy.trials()] == [("failed", 0)]
        assert toy.left() == []
    assert "the command ended with signal 9 (Killed)" in toy.trials()[0]["reason"]


@pytest.mark.parametrize("engine", ENGINES)
def test_with_a_tool_that_is_killed_they_end_and_the_next_start_tidies_up(toy: Toy, engine: str) -> None:
    process = toy.start("bench", "endless", "--engine", engine, "--quiet")
    until(toy.programs, 400)
    process.kill()
    process.communicate(timeout=200)
    until(lambda: not toy.left(), 200)
    assert list(toy.cache.glob("work/*/endless-*")) != []
    assert toy.run("bench", "long", "--quiet").returncode == 4
    assert list(toy.cache.glob("work/*/*-*")) == []


def test_a_daemon_that_outlived_its_supervisor_is_ended_before_the_next_trial_and_the_trial_says_so(toy: Toy) -> None:
    process = toy.start("bench", "held", "--engine", "local", "--quiet")
    toy.let_end()
    toy.let_end()  # one of the two is the baseline or the control: a run continues if one of them was successful
    until(toy.programs, 400)
    outlived = wrapper(toy)
    supervisor = int((Path("/proc") / str(outlived[0]) / "stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: len(toy.trials()) == 3)
    after = until(lambda: toy.programs() and set(wrapper(toy)) - set(outlived), 400)
    os.kill(after.pop(), signal.SIGKILL)
    until(lambda: len(toy.trials()) == 4)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=200)
    *others, last = [trial["ended_before"] for trial in toy.trials()[:4]]
    assert (others, last >= 2) == ([0, 0, 0], True)
    assert toy.left() == []

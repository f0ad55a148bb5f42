"""The gate of an interleaved process: two real pipes that carry only its messages."""

import os

import pytest

from bench.errors import BenchError, RunError
from bench.gate import Gate, Turn


@pytest.fixture
def ends(tmp_path):
    """Yield the host's ends of a gate's pipes (to read from, to write to) and the folder."""
    for name in ("ready", "go"):
        os.mkfifo(tmp_path / name)
    told, go = (os.open(tmp_path / name, os.O_RDWR | os.O_NONBLOCK) for name in ("ready", "go"))
    yield told, go, tmp_path
    for number in (told, go):
        os.close(number)


def test_a_process_says_what_is_left_and_takes_the_turns_it_is_given(ends):
    told, go, folder = ends
    os.write(go, b"go 2 10\ngo 2 10\nend\n")
    gate = Gate(str(folder))
    assert gate.turn(12) == Turn(2, 10)
    assert gate.turn(2) == Turn(2, 2), "no more than what is left"
    gate.wait_for_extra_seconds()
    assert os.read(told, 100) == b"ready 12\nready 2\nready 0\n"


def test_a_process_may_go_on_after_its_last_turn_for_some_seconds_of_steps(ends):
    _, go, folder = ends
    os.write(go, b"end 6250\nend\nend x\n")
    gate = Gate(str(folder))
    assert (gate.wait_for_extra_seconds(), gate.wait_for_extra_seconds()) == (6.25, None)
    with pytest.raises(RunError, match="the gate"):
        gate.wait_for_extra_seconds()


@pytest.mark.parametrize("said", [b"go\n", b"go 1\n", b"go -1 2\n", b"go x 2\n", b"go 2 0\n", b"end\n", b"\n"])
def test_what_is_no_turn_is_told_in_words(ends, said):
    _, go, folder = ends
    os.write(go, said)
    with pytest.raises(RunError, match="the gate"):
        Gate(str(folder)).turn(5)


def test_a_turn_after_the_last_step_is_none(ends):
    _, go, folder = ends
    os.write(go, b"go 2 10\n")
    with pytest.raises(RunError, match="no step is left"):
        Gate(str(folder)).wait_for_extra_seconds()


def test_whoever_gave_turns_and_is_gone_ends_the_process(tmp_path):
    os.mkfifo(tmp_path / "ready")
    (tmp_path / "go").touch()
    reading = os.open(tmp_path / "ready", os.O_RDWR)
    with pytest.raises(RunError, match="is gone"):
        Gate(str(tmp_path)).turn(5)
    os.close(reading)


def test_a_folder_that_is_no_gate_is_bad_input(tmp_path):
    with pytest.raises(BenchError, match="is no gate"):
        Gate(str(tmp_path / "nowhere"))

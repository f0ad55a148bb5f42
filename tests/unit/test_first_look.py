"""The first look at a program of the command line."""

import fcntl
from types import SimpleNamespace

import pytest

from envmatrix.api import programs
from envmatrix.trials import leftovers


def test_a_first_look_runs_alone_and_nothing_of_an_earlier_trial_beside_it(tmp_path, monkeypatch):
    """It sets the budget and the limits: beside another's measuring it would take too long, and spoil that too."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path))
    done = []
    monkeypatch.setattr(leftovers, "end_processes", lambda: done.append("swept"))

    def look(*_):
        with (tmp_path / "measuring.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done.append("looked")
        return SimpleNamespace(output="it")

    monkeypatch.setattr(programs, "look", look)
    seen = programs._looked(None, None, 2, lambda _: None, done.append)
    assert (seen.output, done) == ("it", ["swept", "looked", "it", "looked", "it"])

"""Fixtures of unit tests."""

import shutil
import subprocess

import pytest

from envmatrix.trials import orphans


@pytest.fixture
def no_orphans(monkeypatch):
    """Hide processes that a parallel test left: a run of simulated trials would end them and report it."""
    monkeypatch.setattr(orphans, "end_processes", lambda: 0)


@pytest.fixture
def keys(tmp_path):
    """Return a folder with two SSH keys, ``mine`` and ``other``, and a list of ``signers`` with the first alone."""
    if not shutil.which("ssh-keygen"):
        pytest.skip("no ssh-keygen")
    for name in ("mine", "other"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(tmp_path / name)]
        subprocess.run(argv, check=True)
    (tmp_path / "signers").write_text("me@example.org " + (tmp_path / "mine.pub").read_text())
    return tmp_path

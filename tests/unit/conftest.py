"""Fixtures of unit tests."""

import shutil
import subprocess

import pytest

from envmatrix.engines import docker_api, podman
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


@pytest.fixture
def no_engines(tmp_path, monkeypatch):
    """Hide this machine's container engines; ``user/podman`` is where the socket of the user's Podman would be."""
    for name in ("CONTAINER_HOST", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))
    monkeypatch.setattr(docker_api, "_PODMAN_SOCKET", str(tmp_path / "system.sock"))
    monkeypatch.setattr(docker_api, "_DOCKER_SOCKET", str(tmp_path / "docker.sock"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "user" / "podman").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    podman._start_service.cache_clear()

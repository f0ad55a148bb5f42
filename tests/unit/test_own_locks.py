"""Locks of a user's matrix are written next to it, so that a repository can have several matrices."""

from __future__ import annotations

from envmatrix.__main__ import main
from envmatrix.api.matrix_and_run_lookup import load_matrix
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.package_locks import Locks
from envmatrix.system import resource_paths
from envmatrix.trials.images import build_places

MATRIX = """version: 2
factors:
  packages:
    ours: {requirements: [numpy==2.3.0]}
environments:
  baseline: {}
workloads:
  train: {command: [python, train.py], metric: {wall: true}}
designs:
  default: {environments: baseline, workloads: train}
"""


def test_the_first_lock_of_a_matrix_is_written_beside_it_and_found_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Locks, "_resolve", lambda *_, **__: (PinnedPackage("numpy", "2.3.0", "a" * 64),))
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    ours = set(resource_paths.bundled_package_locks().iterdir())
    assert main(["lock", "baseline"]) == 0
    (written,) = capsys.readouterr().out.splitlines()
    (file,) = (tmp_path / "containers" / "locks").iterdir()
    assert written == str(file)
    assert "numpy==2.3.0" in file.read_text()
    assert build_places(tmp_path / load_matrix().path, tmp_path).locks == file.parent
    assert set(resource_paths.bundled_package_locks().iterdir()) == ours

"""The wheel, built from the sdist, in a fresh venv outside the checkout: a user's program without a matrix."""

import subprocess

import pytest

from tests.installed import build, install, outside

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]


def test_the_wheel_benchmarks_a_program_of_ones_own_and_carries_its_documentation(tmp_path):
    command = install(build(tmp_path / "dist"), tmp_path / "venv")
    (tmp_path / "mine.py").write_text("print('items/s:', 7.5)\n")

    def run(*words):
        return subprocess.run(
            [command, *words], cwd=tmp_path, env=outside(), capture_output=True, text=True, check=False
        )

    done = run("bench", "--max-blocks", "1", "--environments", "tcmalloc", "--", "python3", "mine.py")
    assert done.returncode == 0, done.stderr
    assert "metric: items/s" in done.stderr
    assert "mine, engine local" in done.stdout
    exported = run("export", "tcmalloc")
    assert "libtcmalloc_minimal.so.4" in exported.stdout, exported.stderr
    pages = run("docs").stdout
    assert str(tmp_path / "venv") in pages
    assert run("docs", "matrix").stdout.startswith("# matrix.yaml, key by key")
    assert "did you mean 'workloads'?" in run("docs", "worklods").stderr

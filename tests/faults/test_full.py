"""A disk that fills up under a trial: measured data is kept, and missing data is reported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import demand
from tests.faults.conftest import Toy, until

ROOT = Path(__file__).parents[2]
FILLS = """
import os
with open(os.environ["TMPDIR"] + "/filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError as error:
        print("then", error.strerror)
print("speed 1.5")
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a disk of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    demand("no tmpfs can be mounted here" if subprocess.run(mount, check=False).returncode else None)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def measured(record: Path, small: Path, code: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bench", "command", "--record", str(record), "--metric-regex", "speed ([0-9.]+)"]
    return subprocess.run(
        [*argv, "--", sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "TMPDIR": str(small)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_program_that_fills_its_tmp_is_measured_and_the_log_says_what_is_missing(tmp_path: Path, small: Path) -> None:
    done = measured(tmp_path / "record.json", small, FILLS)
    assert done.returncode == 0, done.stderr
    assert "then No space left on device" in done.stderr
    assert "bench probe: no evidence: [Errno 28] No space left on device" in done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["metric"]["value"], record["evidence"]["source"]) == (1.5, "outside")
    assert [path.name for path in small.iterdir()] == ["filler"]


def test_a_record_that_finds_no_space_fails_in_words_that_say_where(tmp_path: Path, small: Path) -> None:
    done = measured(small / "record.json", small, FILLS)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"bench: error: no space is left on the disk of {small}: free some, or give it more"
    )
    assert [path.name for path in small.iterdir()] == ["filler"]


@pytest.mark.local
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["results", "work"])
def test_results_on_a_disk_that_is_full_stop_the_run_and_resume_loses_and_doubles_nothing(toy: Toy, name: str) -> None:
    full = {"results": toy.folder, "work": toy.cache}[name] / name
    full.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(full)]
    demand("no tmpfs can be mounted here" if subprocess.run(mount, check=False).returncode else None)
    try:
        process = toy.start("bench", "held", "--engine", "local", "--max-blocks", "1")
        toy.let_end()
        held = until(toy.programs, 400)
        with (full / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.kill(held[0], signal.SIGUSR1)
        _, err = process.communicate(timeout=200)
        assert (process.returncode, toy.left()) == (4, []), err
        assert "No space left on device" in err
        assert "envmatrix resume" in err
        assert len(toy.trials()) == 1
        (full / "filler").unlink()
        again = toy.start("resume")
        err = toy.let_all_end(again)
        assert again.returncode == 0, err
        assert [(one["trial"], one["outcome"]) for one in toy.trials()] == [(name, "ok") for name in toy.planned()]
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)

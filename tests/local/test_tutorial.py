"""The tutorial's commands, typed as printed; only the runs are reduced to one block of tcmalloc."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_docs_pages import DOCS, blocks

pytestmark = [pytest.mark.local, pytest.mark.timeout(900)]
PAGE = DOCS / "tutorial.md"


def type_in(line, folder):
    words = shlex.split(line)
    if words[1] == "bench":
        words[2:2] = [
            "--max-blocks",
            "1",
            "--quiet",
            *([] if "--environments" in words else ["--environments", "tcmalloc"]),
        ]
    path = f"{Path(os.environ['BENCH_PYTHON']).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Nothing is measured here: waiting threads sleep.
    env = {**os.environ, "PATH": path, "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.run(words, cwd=folder, text=True, capture_output=True, timeout=600, env=env)


@pytest.mark.skipif("BENCH_PYTHON" not in os.environ, reason="no PyTorch: `nox -s tests` brings one")
def test_every_step_of_the_tutorial_works_as_it_stands(tmp_path):
    (program,) = blocks(PAGE, "python")
    (check,) = [body for body in blocks(PAGE, "text") if body.lstrip().startswith("check:")]
    assert ("range(4)" in program, program.count("2048")) == (True, 4)
    (tmp_path / "train.py").write_text(program.replace("range(4)", "range(1)").replace("2048", "256"))
    said = {}
    for line in "".join(blocks(PAGE, "bash")).splitlines():
        if line == "envmatrix check":
            matrix = (tmp_path / "matrix.yaml").read_text()
            place = matrix.index("\n", matrix.index("    metric:")) + 1
            (tmp_path / "matrix.yaml").write_text(f"{matrix[:place]}{check}{matrix[place:]}")
        done = type_in(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        said[line] = done.stdout
    assert "Equal work not checked" in said["envmatrix report first"]
    assert "not checked" not in next(text for line, text in said.items() if "bench --name second" in line)
    assert "LD_PRELOAD" in said["envmatrix export tcmalloc"]
    assert "throughput: " in said["envmatrix exec tcmalloc -- python train.py"]
    assert "libtcmalloc" in said["envmatrix evidence tcmalloc"]
    assert (tmp_path / "results" / "first" / "report.html").is_file()

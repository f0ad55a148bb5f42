"""Environments with checks and evidence from real processes, for tests that compare the two."""

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.evidence import checks
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.plan.environment import Environment, Image

ROOT = Path(__file__).parents[1]
PYTHON = os.path.realpath(sys.executable)
#: A torch that only has a number of threads.
TORCH = """
from types import SimpleNamespace
__version__ = "0"
now = 2
part = SimpleNamespace(is_available=lambda: None)
backends = SimpleNamespace(mkl=part, mkldnn=part, openmp=part)
def get_num_interop_threads(): return 1
__config__ = SimpleNamespace(show=lambda: "")
def get_num_threads(): return now
def set_num_threads(number):
    global now
    now = number
"""


def environment(preload=(), promised=None, variables=None):
    return Environment(
        "mine", "", {}, Image("i"), variables or {}, tuple(("", Path(file).name) for file in preload),
        checks.parse_claims({path: [value] for path, value in (promised or {}).items()}),
    )  # fmt: skip


def evidence_of(tmp_path, argv, env=None):
    record = tmp_path / "record.json"
    base = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    done = subprocess.run(
        [sys.executable, ROOT / "tests/watched.py", tmp_path / "looks", "command", "--record", record, "--", *argv],
        cwd=ROOT, env={**base, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return read_evidence(json.loads(record.read_text())["evidence"])


def compiled(folder, name, code, *options):
    compiler = shutil.which("cc")
    if not compiler or not ctypes.util.find_library("c"):
        pytest.skip("no C compiler")
    source, made = folder / f"{name}.c", folder / name
    source.write_text(code)
    if subprocess.run([compiler, *options, "-o", made, source], capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler cannot do {' '.join(options)}")
    return str(made)

"""A program that sets its threads, variables or CPUs itself is noticed, with the line that does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.api.user_program.environment_selection import overridden_environments
from envmatrix.evidence.checks import parse_claims
from envmatrix.evidence.evidence_models import Evidence, OwnSetting
from envmatrix.matrix.model import Workload
from envmatrix.matrix.template import MatrixTemplate
from envmatrix.trials.user_program.settings_in_code import describe_conflicts, find_conflict, own_settings

PROJECT = Path(__file__).parents[2]
PROGRAM = """
import ctypes, ctypes.util, os, sys
os.environ["OMP_NUM_THREADS"] = "2"
os.environ.setdefault("MKL_NUM_THREADS", "3")
if "OPENBLAS_NUM_THREADS" not in os.environ:
    os.environ["OPENBLAS_NUM_THREADS"] = "4"
os.environ["UNRELATED"] = "5"
os.environ["KMP_BLOCKTIME"] = os.environ.get("KMP_BLOCKTIME", "1")
os.environ["GOMP_SPINCOUNT"] = "as it was"
os.sched_setaffinity(0, os.sched_getaffinity(0))
import helper
helper.work()
"""
HELPER = "import os\ndef work():\n    os.environ.update(MALLOC_ARENA_MAX='1')\n    sum(i * i for i in range(10 ** 6))\n"


def record_of(folder: Path, *command: str) -> Evidence:
    options = ("--metric-wall", "--metric-name=value", "--better=lower", "--record=record.json")
    variables = {**os.environ, "GOMP_SPINCOUNT": "as it was", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX"):
        variables.pop(name, None)
    argv = [sys.executable, PROJECT / "bench" / "__main__.py", "command", *options, "--", *command]
    subprocess.run(argv, cwd=folder, env=variables, check=True, timeout=60)
    return Evidence.model_validate(json.loads((folder / "record.json").read_text())["evidence"])


def test_what_a_program_sets_itself_is_recorded_with_its_line_unless_it_looked_first(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text(HELPER)
    found = record_of(tmp_path, sys.executable, "train.py").own_settings
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert [(setting.name, setting.value, setting.where) for setting in found] == [
        ("OMP_NUM_THREADS", "2", "line 3 of train.py"),
        ("os.sched_setaffinity", cpus, "line 10 of train.py"),
        ("MALLOC_ARENA_MAX", "1", "line 3 of helper.py"),
    ]


def test_the_assignments_of_a_shell_script_are_found_unless_they_keep_a_value(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/sh\nexport OMP_NUM_THREADS=2\nMKL_NUM_THREADS=${MKL_NUM_THREADS:-3}\nKMP_AFFINITY='compact' python x\n"
    )
    found = own_settings(Evidence(), [script, tmp_path / "gone.sh", PROJECT / "README.md"])
    assert [(setting.name, setting.value, setting.where) for setting in found] == [
        ("OMP_NUM_THREADS", "2", "line 2 of run.sh"), ("KMP_AFFINITY", "compact", "line 4 of run.sh"),
    ]  # fmt: skip


ONE = parse_claims({"threads": ["1"]})


@pytest.mark.parametrize(
    ("name", "value", "level", "conflicts"),
    [
        ("OMP_NUM_THREADS", "2", {"variables": {"OMP_NUM_THREADS": "1"}}, True),
        ("OMP_NUM_THREADS", "1", {"variables": {"OMP_NUM_THREADS": "1"}}, False),
        ("OMP_NUM_THREADS", "2", {"variables": {"OMP_NUM_THREADS": None}}, True),
        ("OMP_NUM_THREADS", "2", {"variables": {"OMP_PROC_BIND": "close"}}, False),
        ("torch.set_num_threads", "2", {"variables": {}, "claims": ONE}, True),
        ("torch.set_num_threads", "1", {"variables": {}, "claims": ONE}, False),
        ("torch.set_num_threads", "2", {"variables": {}}, False),
        ("os.sched_setaffinity", "0", {"variables": {}, "cpus": "0-3"}, True),
        ("os.sched_setaffinity", "0", {"variables": {}}, False),
    ],
)
def test_only_a_level_that_the_program_overrides_cannot_be_tested(name, value, level, conflicts):
    setting = OwnSetting(name=name, value=value, where="line 3 of train.py")
    cause = find_conflict([setting], **level)
    assert bool(cause) == conflicts
    assert not cause or (name in cause and cause.endswith("itself (line 3 of train.py)"))


def test_environments_are_left_out_with_one_line_for_each_cause():
    workload = Workload(name="mine", command=("python", "train.py"))
    template = MatrixTemplate("/usr/bin/python3", [workload], torch=True, environments=())
    own = [OwnSetting(name="OMP_NUM_THREADS", value="77", where="line 3 of train.py")]
    conflicts = overridden_environments(template, own)
    assert "one-thread" in conflicts or len(os.sched_getaffinity(0)) == 1
    assert "tcmalloc" not in conflicts
    lines = list(describe_conflicts(conflicts))
    assert len(lines) <= 1
    assert all(line.startswith("your program sets OMP_NUM_THREADS itself (line 3 of train.py), so") for line in lines)
    assert overridden_environments(template, []) == {}

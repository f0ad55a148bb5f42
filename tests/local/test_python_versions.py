"""One program in several Pythons of this machine: each level is verified, and a missing Python is reported."""

import json

import pytest

from envmatrix.build.python.interpreters import find_python
from envmatrix.errors import SkipEnvironmentError

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]
MATRIX = """
version: 2
include: envmatrix:python
factors:
  python:
    liar: {{python: "{liar}", claims: {{system.python: "2.7.*"}}}}
environments:
  baseline: {{}}
  liar: {{python: liar}}
workloads:
  mine: {{command: [python, mine.py], metric: {{regex: 'items/s: ([0-9.]+)', better: higher}}}}
designs:
  default: {{environments: [{others}], workloads: mine, max_blocks: 1, budget: 5m}}
  lying: {{environments: [liar], workloads: mine, max_blocks: 1, budget: 5m}}
"""
PROGRAM = "import sys\nprint('this is', sys.version)\nprint('items/s:', sys.version_info[1])\n"
#: A version that may or may not be installed.
FREE = "3.14t"


@pytest.fixture
def others(project):
    """Return the shipped levels whose Python is installed on this machine."""
    found = []
    for version in ("3.10", "3.12", "3.13"):
        try:
            find_python(version)
        except SkipEnvironmentError:
            continue
        found.append(version)
    if not found:
        pytest.skip("this machine has one Python only")
    names = ", ".join(f"python-{version}" for version in (*found, FREE))
    (project.folder / "matrix.yaml").write_text(MATRIX.format(liar=found[0], others=names))
    (project.folder / "mine.py").write_text(PROGRAM)
    return found


def test_each_level_is_that_python_and_one_that_is_not_here_is_skipped_with_what_installs_it(project, others):
    done = project.run("bench")
    assert done.returncode == 0, done.stderr
    trials = {trial["environment"]: trial for trial in project.trials()}
    for version in others:
        trial = trials[f"python-{version}"]
        assert trial["outcome"] == "ok", trial["reason"]
        system = trial["record"]["evidence"]["system"]
        assert system["python"].startswith(f"{version}.")
        assert system["gil"] is True
        assert trial["record"]["metrics"]["value"] == int(version[2:])
    free = trials.get(f"python-{FREE}")
    if free is None or free["outcome"] == "skipped":
        run = json.loads((project.newest() / "run.json").read_text())
        assert f"uv python install {FREE}" in done.stderr + json.dumps(run)
    else:
        assert free["record"]["evidence"]["system"]["gil"] is False


def test_a_level_that_is_another_python_than_it_says_is_invalid(project, others):
    done = project.run("bench", "lying")
    assert done.returncode == 3, done.stderr
    reasons = [trial["reason"] for trial in project.trials() if trial["outcome"] == "invalid"]
    assert len(reasons) == 1
    assert f"claims system.python is 2.7.*, but it was {others[0]}." in reasons[0]

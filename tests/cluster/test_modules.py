"""A Python that is provided by an environment module, in jobs of a real Slurm."""

import sys

import pytest

from tests.cluster.test_slurm import SLURM
from tests.module_tree import module_tree

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
MATRIX = """
version: 2
factors:
  stack: {here: {interpreter: PYTHON}, site: {modules: Stack/2.0}}
environments: {baseline: {}, site: {stack: site}}
workloads:
  mine: {command: [python, speed.py], files: programs, metric: {regex: 'speed ([0-9.]+)', better: higher}}
designs:
  one: {environments: site, workloads: mine, max_blocks: 1}
"""
PROGRAM = """
import os
print("speed", os.environ.get("STACK_SPEED", "10"))
"""


def test_what_a_module_brings_is_there_in_a_job(project, tmp_path):
    home, _ = module_tree(tmp_path)
    (project.folder / "matrix.yaml").write_text(MATRIX.replace("PYTHON", sys.executable))
    (project.folder / "programs" / "speed.py").write_text(PROGRAM)
    done = project.run("bench", "one", *SLURM, MODULEPATH=str(tmp_path / "tree"), MODULESHOME=str(home))
    assert done.returncode == 0, done.stderr
    values = {trial["environment"]: trial["record"]["metrics"]["value"] for trial in project.trials()}
    assert values == {"baseline": 10.0, "control": 10.0, "site": 20.0}

"""A Python that is provided by an environment module, in jobs of a real Slurm."""

import sys

import pytest

from envmatrix.block.program_overlay import overlay_root_or_reason
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
#: It writes beside itself, in its own folder: an overlay catches that on a node too.
PROGRAM = """
import os
open("speed.py", "a").write("broken(")
open("cwd", "w").close()
assert os.getcwd() == os.path.dirname(os.path.abspath(__file__)) == HERE, os.getcwd()
print("speed", os.environ.get("STACK_SPEED", "10"))
"""


def test_what_a_module_brings_is_there_in_a_job_and_the_program_is_in_its_own_folder(project, tmp_path):
    home, _ = module_tree(tmp_path)
    (project.folder / "matrix.yaml").write_text(MATRIX.replace("PYTHON", sys.executable))
    programs = project.folder / "programs"
    program = PROGRAM.replace(
        "HERE", repr(str(programs)) if overlay_root_or_reason(programs, tmp_path)[0] else "os.getcwd()"
    )
    (programs / "speed.py").write_text(program)
    done = project.run("bench", "one", *SLURM, MODULEPATH=str(tmp_path / "tree"), MODULESHOME=str(home))
    assert done.returncode == 0, done.stderr
    values = {trial["environment"]: trial["record"]["metrics"]["value"] for trial in project.trials()}
    assert values == {"baseline": 10.0, "control": 10.0, "site": 20.0}
    assert (programs / "speed.py").read_text() == program
    assert not (programs / "cwd").exists()

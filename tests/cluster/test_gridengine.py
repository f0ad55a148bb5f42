"""Runs on a real Grid Engine of two hosts, with its faults."""

import os

import pytest

from tests.cluster.conftest import Project
from tests.cluster.test_slurm import QUICK, done_once

pytestmark = [pytest.mark.gridengine, pytest.mark.timeout(600)]
#: All slots of a host, so that each host runs one block at a time.
GRID = ("--launcher", "gridengine", "--nodes", "2", "--queue", "all.q", "--pe", f"smp:{os.cpu_count()}")


@pytest.fixture
def project(tmp_path, grid):
    yield Project(tmp_path / "pro ject", grid)
    grid.clean()


def test_a_design_over_two_hosts_completes_and_each_block_stays_on_one(project):
    done = project.run("bench", "tiny", *GRID, *QUICK)
    assert done.returncode == 0, done.stderr
    trials = done_once(project)
    assert {trial["outcome"] for trial in trials} == {"ok"}
    assert {trial["node"] for trial in trials} == {"left", "right"}

"""Runs on a real Grid Engine of two hosts, with its faults."""

import os

import pytest

from tests.cluster import gridengine_daemons
from tests.cluster.conftest import Project
from tests.cluster.test_slurm import done_once

pytestmark = [pytest.mark.gridengine, pytest.mark.timeout(600)]
#: All slots of a host, so that each host runs one block at a time.
GRID = ("--launcher", "gridengine", "--nodes", "2", "--queue", "all.q", "--pe", f"smp:{os.cpu_count()}")


@pytest.fixture(scope="module")
def grid():
    reason = gridengine_daemons.missing()
    if reason and os.environ.get("ENVMATRIX_REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    made = gridengine_daemons.GridEngine()
    try:
        made.start()
        yield made
    finally:
        made.close()
    assert made.left() == []


@pytest.fixture
def project(tmp_path, grid):
    yield Project(tmp_path / "pro ject", grid)
    grid.clean()


def test_a_design_over_two_hosts_completes_and_each_block_stays_on_one(project):
    done = project.run("bench", "tiny", *GRID)
    assert done.returncode == 0, done.stderr
    trials = done_once(project)
    assert {trial["outcome"] for trial in trials} == {"ok"}
    assert {trial["node"] for trial in trials} == {"left", "right"}

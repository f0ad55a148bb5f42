"""A CPU quota limits real processes and is verified inside them; if none is possible, that is reported first."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envmatrix.build.paths import BuildPaths
from envmatrix.engines import process_limits
from envmatrix.engines.base import Engine, Job, Limits, LimitsCpuTime, Mounts, Prepared, check_quota
from envmatrix.engines.local import LocalEngine
from envmatrix.errors import SkipEnvironmentError
from envmatrix.plan.environment import Environment, Image
from tests.engines.conftest import demand

#: Uses a tenth of a second of CPU time: ten periods at a tenth of a CPU, on a busy machine too.
WORK = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from bench.evidence import sandbox
while time.process_time() < 0.1:
    pass
json.dump(sandbox.collect()["cgroup"], open("group.json", "w"))
"""
BENCH = Path(__file__).parents[2] / "bench"
TENTH = Environment("tenth", "", {}, Image("i"), {}, (), (), cpu_quota=0.1)

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def job_of_host(ground: BuildPaths, tmp_path: Path) -> Job:
    work = tmp_path / "work"
    work.mkdir()
    prepared = Prepared("host", "local", sys.executable, sys.executable, {})
    return Job(
        f"test-{tmp_path.name}", "t1", prepared, (), {}, (), Mounts(work, {"bench": ground.bench}), Limits(60.0),
        tmp_path / "log",
    )  # fmt: skip


def at_work(engine: Engine, job: Job, quota: float | None) -> dict[str, object]:
    mounts = Mounts(job.mounts.work, {"bench": BENCH})
    argv = (job.prepared.python, "-c", WORK, str(Path(engine.inside(mounts)["bench"]).parent))
    ended = engine.run(replace(job, argv=argv, mounts=mounts, limits=replace(job.limits, cpu_quota=quota)))
    assert ended.ok, job.log.read_text() if job.log else ""
    found: dict[str, object] = json.loads((job.mounts.work / "group.json").read_text())
    return found


def holds(engine: Engine, job: Job) -> None:
    assert isinstance(engine, LimitsCpuTime)
    demand(engine.why_no_cpu_quota())
    free, tenth = at_work(engine, job, None), at_work(engine, job, 0.1)
    assert (free["cpu_limit"], tenth["cpu_limit"]) == (None, 0.1)
    assert not free["throttled_periods"]
    assert int(str(tenth["throttled_periods"])) > 1, tenth
    assert process_limits.leftover_cgroups(f"envmatrix-{job.run}.") == []


def test_a_container_has_the_time_that_its_quota_gives(engine: Engine, job: Job) -> None:
    holds(engine, job)


@pytest.mark.local
def test_a_process_of_the_local_engine_has_the_time_that_its_quota_gives(ground: BuildPaths, job_of_host: Job) -> None:
    holds(LocalEngine(ground), job_of_host)


@pytest.mark.local
def test_a_quota_and_a_memory_limit_hold_together(ground: BuildPaths, job_of_host: Job) -> None:
    engine = LocalEngine(ground)
    demand(engine.why_no_cpu_quota())
    found = at_work(engine, replace(job_of_host, limits=replace(job_of_host.limits, memory_bytes=2**28)), 0.1)
    assert found["cpu_limit"] == 0.1
    if process_limits.memory_limit_mechanism() != "RLIMIT_DATA":
        assert found["memory_limit_bytes"] == 2**28


@pytest.fixture
def quota_above(tmp_path: Path) -> Iterator[Path]:
    """Yield a control group without its own quota, inside one with a twentieth of a CPU."""
    place = process_limits._find_usable_cgroup("cpu")
    demand(None if place else "no control group may be made here")
    assert place
    above = place[0] / f"envmatrix-test-{os.getpid()}"
    below = above / "below"
    above.mkdir()
    try:
        if place[1] == "cgroup v2":
            (above / "cgroup.subtree_control").write_text("+cpu")
            (above / "cpu.max").write_text("5000 100000")
        else:
            (above / "cpu.cfs_quota_us").write_text("5000")
        below.mkdir()
        yield below
    finally:
        for group in (below, above):
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()


@pytest.mark.local
def test_a_quota_of_the_group_above_is_found_with_how_often_it_was_used_up(quota_above: Path, tmp_path: Path) -> None:
    enter = ["/bin/sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', str(quota_above)]
    asked = "from envmatrix.api.machine_checks import *; print(*check_cpu_quota(Path('/')))"
    seen = subprocess.run(
        [*enter, sys.executable, "-c", WORK + asked, str(BENCH.parent)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(BENCH.parent)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads((tmp_path / "group.json").read_text())
    assert found["cpu_limit"] == 0.05
    assert found["throttled_periods"] > 1, found
    assert f"the CPU time of 0.05 CPUs, set by {quota_above.parent}; the limit was reached in " in seen.stdout


@pytest.mark.local
def test_where_no_group_may_be_made_an_environment_with_a_quota_is_skipped(
    ground: BuildPaths, monkeypatch: pytest.MonkeyPatch, job_of_host: Job
) -> None:
    monkeypatch.setattr(process_limits, "_find_usable_cgroup", lambda controller: None)
    with pytest.raises(
        SkipEnvironmentError,
        match="`cpu_quota` is not available with engine local: envmatrix cannot create a control group",
    ):
        check_quota(LocalEngine(ground), TENTH)
    with pytest.raises(SkipEnvironmentError, match="cannot create a control group with a CPU quota"):
        at_work(LocalEngine(ground), job_of_host, 0.1)
    check_quota(LocalEngine(ground), replace(TENTH, cpu_quota=None))

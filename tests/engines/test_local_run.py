"""Real processes on the local engine: what they see, and how each way of ending is reported."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envmatrix.build.paths import BuildPaths, project_paths
from envmatrix.engines.base import Job, Limits, Mounts, Prepared
from envmatrix.engines.local import LocalEngine
from envmatrix.engines.process_limits import leftover_cgroups
from envmatrix.errors import EnvmatrixError
from envmatrix.matrix import load
from envmatrix.plan.environment import all_libraries, resolve_environment
from envmatrix.system.resource_paths import bundled_matrix_file
from tests.engines.conftest import Said

pytestmark = pytest.mark.local

SEEN = (
    "import json, os, sys; json.dump([dict(os.environ), sorted(os.sched_getaffinity(0)), sys.argv], open('out', 'w'))"
)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    work = tmp_path / "work"
    work.mkdir()
    prepared = Prepared("host", "local", sys.executable, sys.executable, {})
    return Job(
        run="run", label="t1", prepared=prepared, argv=(sys.executable, "-c", SEEN), env={}, preload=(),
        mounts=Mounts(work, {}), limits=Limits(seconds=60), log=tmp_path / "log",
    )  # fmt: skip


def outcome(job: Job) -> tuple[dict[str, str], list[int], list[str]]:
    seen = json.loads((job.mounts.work / "out").read_text())
    return seen[0], seen[1], seen[2]


def test_a_process_sees_its_variables_and_nothing_of_the_host(
    places: BuildPaths, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    hostile = {"A": 'x y,$HOME`id`"q"', "B": "", "C": "é;rm -rf /\\"}
    assert LocalEngine(places).run(replace(job, env=hostile)).ok
    variables = outcome(job)[0]
    assert {name: variables.get(name) for name in hostile} == hostile
    assert set(variables) - set(hostile) <= {"LC_CTYPE"}  # set by Python itself


def test_a_preload_is_set_in_the_child_alone(places: BuildPaths, job: Job) -> None:
    library = "/lib/x86_64-linux-gnu/libm.so.6"
    code = "import os; open('out', 'w').write(open('/proc/self/maps').read() + os.environ['LD_PRELOAD'])"
    assert LocalEngine(places).run(replace(job, argv=("/usr/bin/python3", "-S", "-c", code), preload=(library,))).ok
    assert (job.mounts.work / "out").read_text().endswith(library)
    assert "LD_PRELOAD" not in os.environ


def test_a_process_starts_on_its_cpus(places: BuildPaths, job: Job) -> None:
    last = max(os.sched_getaffinity(0))
    assert LocalEngine(places).run(replace(job, limits=Limits(60, cpus=(last,)))).ok
    assert outcome(job)[1] == [last]


def test_a_cpu_that_does_not_exist_is_an_error_with_its_number(places: BuildPaths, job: Job) -> None:
    with pytest.raises(EnvmatrixError, match="CPUs 4095"):
        LocalEngine(places).run(replace(job, limits=Limits(60, cpus=(4095,))))


def test_arguments_arrive_exactly_as_written(places: BuildPaths, job: Job) -> None:
    hostile = ["a b", "$HOME", '"', "'", "\n", "--x", ";id", "*"]
    assert LocalEngine(places).run(replace(job, argv=(*job.argv, *hostile))).ok
    assert outcome(job)[2][1:] == hostile


def test_a_process_past_its_limit_is_ended_with_its_children(places: BuildPaths, job: Job) -> None:
    code = "sleep 77 & echo $! >out; wait"  # a shell does this long before its limit, on any machine
    ended = LocalEngine(places).run(replace(job, argv=("/bin/sh", "-c", code), limits=Limits(seconds=1.5)))
    assert ended.timed_out
    child = int((job.mounts.work / "out").read_text())
    for _ in range(600):  # it is killed; on a busy machine it may have to wait for a CPU before it ends
        if has_ended(child):
            return
        time.sleep(0.1)
    pytest.fail("a child of it still runs")


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_running_out_of_memory_is_told_apart_from_other_failures(places: BuildPaths, job: Job) -> None:
    code = "x = bytearray(400 * 2**20); x[::4096] = b'x' * len(x[::4096])"
    ended = LocalEngine(places).run(
        replace(job, argv=(sys.executable, "-c", code), limits=Limits(60, memory_bytes=100 * 2**20))
    )
    assert not ended.ok
    assert ended.out_of_memory or b"MemoryError" in job.log.read_bytes()
    assert leftover_cgroups("envmatrix-run.") == []


def test_memory_can_be_bound_to_a_node(places: BuildPaths, job: Job) -> None:
    code = "open('out', 'w').write(open('/proc/self/numa_maps').read())"
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this kernel has no NUMA")
    assert (
        LocalEngine(places)
        .run(replace(job, argv=(sys.executable, "-c", code), limits=Limits(60, memory_nodes=(0,))))
        .ok
    )
    assert "bind:0" in (job.mounts.work / "out").read_text()


@pytest.mark.timeout(900)  # the venv is made here unless an earlier test has made it
def test_torch_of_the_default_lock_runs_with_a_preloaded_allocator(job: Job, said: Said) -> None:
    matrix = load(bundled_matrix_file())
    image = resolve_environment(matrix, "baseline", {}).image
    jemalloc = next(item for item in all_libraries(matrix) if item.key == "malloc-jemalloc")
    engine = LocalEngine(project_paths())
    prepared = engine.prepare(image, (jemalloc,), said)
    if jemalloc.key in prepared.missing:
        pytest.skip(prepared.missing[jemalloc.key])
    library = f"{prepared.libraries[jemalloc.key]}/libjemalloc.so.2"
    code = (
        "import torch; assert 'jemalloc' in open('/proc/self/maps').read(); open('out', 'w').write(torch.__version__)"
    )
    argv = (prepared.python, "-c", code)
    ended = engine.run(replace(job, prepared=prepared, argv=argv, preload=(library,), limits=Limits(seconds=600)))
    assert ended.ok, job.log.read_text()
    assert (job.mounts.work / "out").read_text() == prepared.facts["package torch"]

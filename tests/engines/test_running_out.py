"""Running out of memory or disk in real Docker, Podman and Apptainer: messages and leftovers."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from envmatrix.build.cache import Cache
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Engine, Job, Prepared
from envmatrix.engines.process_limits import _find_usable_cgroup
from envmatrix.errors import EngineError
from tests.engines.conftest import IMAGE, LIBRARIES, Said, demand

pytestmark = pytest.mark.timeout(900)


#: Asks for too much in one piece. In small pieces the kernel may never kill it: once only its own pages are left, it
#: reads those from disk again and again until the time limit.
TOO_MUCH = "x = bytearray(600 * 2**20); x[::4096] = b'x' * len(x[::4096])"
MEMORY_BYTES = 200 * 2**20


def test_running_out_of_memory_is_told(engine: Engine, job: Job) -> None:
    limits = replace(job.limits, memory_bytes=MEMORY_BYTES)
    ended = engine.run(replace(job, argv=(job.prepared.python, "-c", TOO_MUCH), limits=limits))
    assert ended.out_of_memory, (ended, job.log.read_text())


def test_memory_that_runs_out_in_a_child_is_told_from_other_ends(engine: Engine, job: Job) -> None:
    if engine.name == "podman":
        pytest.skip("Podman does not say of a container whose first process ends by itself that memory ran out in it")
    if engine.name == "apptainer" and _find_usable_cgroup("memory") is None:
        pytest.skip("without a control group of our own the limit is RLIMIT_DATA, and nobody is killed")
    parent = f"import subprocess, sys; sys.exit(bool(subprocess.run([sys.executable, '-c', {TOO_MUCH!r}]).returncode))"
    limits = replace(job.limits, memory_bytes=MEMORY_BYTES)
    ended = engine.run(replace(job, argv=(job.prepared.python, "-c", parent), limits=limits))
    assert (ended.code, ended.out_of_memory) == (1, True), (ended, job.log.read_text())
    ended = engine.run(replace(job, argv=(job.prepared.python, "-c", "raise SystemExit(1)"), limits=limits))
    assert (ended.code, ended.out_of_memory) == (1, False)


FILLS = """
try:
    with open("/tmp/filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(2**20))
except OSError as error:
    print("then", error.strerror)
open("kept", "w").write("what it measured")
"""


def test_a_tmp_that_is_full_is_the_trials_own_and_what_it_writes_beside_it_is_kept(engine: Engine, job: Job) -> None:
    if engine.name == "apptainer":
        pytest.skip("its /tmp is as large as half of the memory: to fill it is to fill the machine's")
    ended = engine.run(replace(job, argv=(job.prepared.python, "-c", FILLS)))
    assert ended.ok, job.log.read_text()
    assert "then No space left on device" in job.log.read_text()
    assert (job.mounts.work / "kept").read_text() == "what it measured"
    again = replace(job, label="t2", argv=(job.prepared.python, "-c", "import os; print(os.listdir('/tmp'))"))
    assert engine.run(again).ok
    assert "filler" not in job.log.read_text().rpartition("then")[2]


def test_a_cache_that_is_full_is_one_clear_error_and_leaves_nothing_half_built(
    engine: Engine, prepared: Prepared, ground: BuildPaths, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(small)]
    demand("no tmpfs can be mounted here" if subprocess.run(mount, check=False).returncode else None)
    try:
        for name in ("apt", "bases", "packages", "pythons", "tools", "uv", "wheelhouse"):
            (small / name).symlink_to(ground.cache.root / name)
        maker = type(engine)(replace(ground, cache=Cache(small)))  # type: ignore[call-arg]
        with pytest.raises(EngineError, match=r"(?i)no space left on device") as caught:
            maker.prepare(replace(IMAGE, name="not-built-before"), LIBRARIES, Said())
        assert "set ENVMATRIX_CACHE to a folder on a larger disk" in str(caught.value)
        assert not [path for name in ("prepared", "sif", "scratch") for path in (small / name).glob("*")]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)

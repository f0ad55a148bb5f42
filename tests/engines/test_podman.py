"""Engine podman on a real Podman: the service that it starts by itself, its image names, and what an end leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.evidence.proc_files import TICKS_PER_S, stat_of
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.docker_api import DockerClient, podman_host, remove
from envmatrix.engines.docker_container_control import start, wait_for_exit
from envmatrix.engines.docker_images import CACHE_LABEL, RUN_LABEL
from envmatrix.engines.podman import PodmanEngine
from envmatrix.plan.environment import Image
from envmatrix.system.resource_paths import cache_folder
from tests.engines.conftest import IMAGE, LIBRARIES, Said, demand, use_podman

pytestmark = [pytest.mark.podman, pytest.mark.timeout(300)]
TRAIN = "import sys, time\nprint('started', flush=True)\ntime.sleep(float(sys.argv[1]))\nprint('7.5 it/s')\n"


@pytest.fixture
def engine(ground: BuildPaths, monkeypatch: pytest.MonkeyPatch) -> PodmanEngine:
    use_podman(monkeypatch)
    found = PodmanEngine(ground)
    demand(found.unavailable())
    return found


@pytest.fixture
def tag(engine: PodmanEngine) -> str:
    """Return the local tag of a small image; Podman's own name for it begins with localhost/."""
    return engine.prepare(IMAGE, LIBRARIES, Said()).reference


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a program, which uses the cache of this session."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(cache_folder()))
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def words(*options: str) -> list[str]:
    return [sys.executable, "-m", "envmatrix", *options]


def bench(tag: str, name: str, seconds: str) -> list[str]:
    options = ("--engine", "podman", "--image", tag, "--environments", "jemalloc", "--max-blocks", "1", "--name", name)
    return words("bench", *options, "--", "python", "train.py", seconds)


def check_run(folder: Path, name: str) -> None:
    """Check that one block ran in Podman with the evidence of its environments."""
    trials = [json.loads(line) for line in (folder / "results" / name / "trials.jsonl").read_text().splitlines()]
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3, [trial["reason"] for trial in trials]
    assert {trial["engine"] for trial in trials} == {"podman"}
    served = {trial["environment"]: trial["record"]["evidence"]["malloc"]["library"] for trial in trials}
    assert served == {"baseline": "libc", "control": "libc", "jemalloc": "libjemalloc"}


def test_a_service_is_started_for_a_run_if_there_is_no_socket_and_ends_with_it(
    engine: PodmanEngine, tag: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its storage is Podman's own: it finds the image that was built at the socket."""
    settings = Path(os.environ["CONTAINER_HOST"].removeprefix("unix://")).parent
    monkeypatch.setenv("CONTAINERS_CONF", str(settings / "containers.conf"))
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(settings / "storage.conf"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.delenv("CONTAINER_HOST")
    if podman_host():
        pytest.skip("the machine's own Podman serves its socket")
    done = subprocess.run(bench(tag, "own", "0"), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_run(folder, "own")
    assert services() == []
    killed = subprocess.Popen(bench(tag, "killed", "300"), cwd=folder, stderr=subprocess.DEVNULL)
    try:
        until(containers)
        (service,) = services()
    finally:
        killed.kill()
        killed.wait()
    until(lambda: not containers() and not services())
    assert Path(service).parent.name.startswith(f"bench-podman.{killed.pid}."), "the next run removes its folder"


def test_its_service_leaves_the_cpus_to_a_container_that_runs(engine: PodmanEngine, tag: str) -> None:
    """Guards against the wait of Docker's API, for which Podman's service uses more than a CPU."""
    with engine.client("measuring its service") as client:
        container = client.api.create_container(tag, entrypoint=["/bin/sleep", "5"])["Id"]
        output = start(client, container)
        before_s = service_cpu_s()
        try:
            assert wait_for_exit(client, container, output) == 0
            assert service_cpu_s() - before_s < 4, "5 s or more with that wait; other tests use the service too"
        finally:
            remove(client, container)


def service_cpu_s() -> float:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(os.environ["CONTAINER_HOST"].removeprefix("unix://"))
        (pid,) = struct.unpack("i8x", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return stat_of(pid).ticks / TICKS_PER_S


def services() -> list[str]:
    """Return the sockets of the services that envmatrix started."""
    argv = ["pgrep", "-af", "podman system service --time=0 unix:///tmp/bench-podman"]
    lines = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
    return sorted({line.partition("unix://")[2] for line in lines if "unix://" in line})


def until(check: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def containers() -> list[str]:
    """Return all containers of this cache in which a program runs or ran."""
    with contextlib.closing(DockerClient(base_url=os.environ["DOCKER_HOST"])) as client:
        label = f"{CACHE_LABEL}={cache_folder()}"
        found = client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
        return [str(one.id) for one in found if one.labels[RUN_LABEL] != "build"]


def test_ctrl_c_leaves_no_container(engine: PodmanEngine, tag: str, folder: Path) -> None:
    process = subprocess.Popen(bench(tag, "stopped", "300"), cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        until(containers)
    finally:
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert containers() == []


@pytest.fixture
def names(engine: PodmanEngine, tag: str) -> Iterator[tuple[str, ...]]:
    """Tag an image as `podman build -t team/train:1` and as a pull from Docker's registry do; yield the short names."""
    with engine.client("tagging") as client:
        image = client.images.get(tag)
        found = ("localhost/team/train:1", "docker.io/team/pulled:1")
        for name in found:
            image.tag(name.rpartition(":")[0], "1")
        yield tuple(name.partition("/")[2] for name in found)
        for name in found:
            client.images.remove(name)


def test_an_image_is_found_by_its_short_name_in_podmans_own_storage(
    engine: PodmanEngine, tag: str, names: tuple[str, ...], said: Said
) -> None:
    with engine.client("looking") as client:
        expected = client.images.get(tag).id
    for name in names:
        prepared = engine.prepare(Image("mine", ready=name), (), said)
        assert (prepared.engine, prepared.reference) == ("podman", expected)
    assert not [line for line in said if line.startswith("pulling")]

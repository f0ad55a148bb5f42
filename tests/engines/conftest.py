"""Fixtures of engine tests: small real wheels, a cache per test, and engines, which CI may require."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from envmatrix.build.cache import Cache
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.base import Engine, Job, Limits, Mounts, Prepared
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_api import DockerClient, connect
from envmatrix.engines.podman import PodmanEngine
from envmatrix.plan.environment import Image, Library
from envmatrix.system import resource_paths

#: The engines with containers.
ENGINES: dict[str, Callable[[BuildPaths], Engine]] = {
    "docker": DockerEngine,
    "podman": PodmanEngine,
    "apptainer": ApptainerEngine,
}
IMAGE = Image("tiny", requirements=("tinypkg==1.0",))
LIBRARIES = (Library("malloc-jemalloc", (), ("libjemalloc2",), ("libjemalloc.so.2",)),)
MakeWheel = Callable[..., Path]
#: A stand-in for bench/ that prints what it sees.
BENCH = """
import os, json, sys
json.dump({"arguments": sys.argv[1:], "variables": dict(os.environ), "uid": os.getuid()}, sys.stdout)
"""


def write_wheel(folder: Path, name: str, version: str, files: dict[str, bytes], needs: str = "") -> Path:
    """Write a valid wheel for any Python that contains ``files`` and depends on ``needs``."""
    info = f"{name}-{version}.dist-info"
    needed = f"Requires-Dist: {needs}\n" if needs else ""
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, body in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(body)}\n"
    file = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, body in members.items():
            archive.writestr(zipfile.ZipInfo(path), body)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record + f"{info}/RECORD,,\n")
    return file


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of wheels, the only packages that the host's pip can find."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    write_wheel(folder, "tinypkg", "1.0", {"tinypkg/__init__.py": b"VERSION = '1.0'\n"})
    write_wheel(folder, "tinylib", "1.0", {"tinylib-1.0.data/data/lib/libtiny.so": b"\x7fELF first"})
    write_wheel(folder, "tinylib", "2.0", {"tinylib-2.0.data/data/lib/libtiny.so": b"\x7fELF second"})
    return folder


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the pip that all tests of a session share."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture
def places(tmp_path: Path, tools: Path) -> BuildPaths:
    """Return build paths with an empty cache and an empty folder of locks."""
    root = tmp_path / "cache"
    root.mkdir()
    (root / "tools").symlink_to(tools)
    (tmp_path / "locks").mkdir()
    return BuildPaths(Cache(root), tmp_path / "locks", tmp_path / "bench")


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildPaths]:
    """Yield build paths with the user's downloads (bases are large) and wheels of a few bytes."""
    folder = tmp_path_factory.mktemp("ground")
    for name in ("wheels", "locks", "bench"):
        (folder / name).mkdir()
    (folder / "bench" / "__main__.py").write_text(BENCH)
    (folder / "bench" / "__init__.py").touch()
    write_wheel(folder / "wheels", "tinypkg", "1.0", {"tinypkg/__init__.py": b"VERSION = '1.0'\n"})
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder / "wheels"))
        yield BuildPaths(Cache(resource_paths.cache_folder()), folder / "locks", folder / "bench")


def demand(reason: str | None) -> None:
    """Skip the test if there is a reason; fail instead if CI has set ENVMATRIX_REQUIRE_ENGINES=1."""
    if reason and os.environ.get("ENVMATRIX_REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def seconds_of(prepare: Callable[[], object], expected: object) -> float:
    """Return the wall time of ``prepare`` and check its result; take the minimum of several to exclude other load."""
    started = time.monotonic()
    assert prepare() == expected
    return time.monotonic() - started


def images_of_build(client: DockerClient, stage: str) -> set[str]:
    """Return all images, unnamed ones too, of builds whose stage has this prefix: others may build at the same time."""
    label = "org.envmatrix.stage"
    found = client.images.list(all=True, filters={"label": label})
    return {str(image.id) for image in found if image.labels[label].startswith(stage)}


def untagged(label: str) -> list[str]:
    """Return the untagged images with a label, from the engine of the Docker API."""
    client = connect()
    try:
        return [str(image.id) for image in client.images.list(filters={"dangling": True, "label": label})]
    finally:
        client.close()


def labels_of(reference: str) -> dict[str, str]:
    """Return the labels of an image or a SIF, without those added by the engine."""
    if reference.endswith(".sif"):
        argv = ["apptainer", "inspect", "--json", reference]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        labels: dict[str, str] = json.loads(said)["data"]["attributes"]["labels"]
    else:
        client = connect()
        labels = dict(client.images.get(reference).labels)
        client.close()
    return {name: value for name, value in labels.items() if name.startswith(("org.opencontainers.", "org.envmatrix."))}


def builders_folders(sif: str) -> list[str]:
    """Return the lines of a SIF's metadata that name a folder of the build machine."""
    argv = ["apptainer", "inspect", "--all", "--json", sif]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "deffile.from" in said
    folders = (str(resource_paths.cache_folder()), "/dev/shm/")
    return [line for line in said.splitlines() if any(folder in line for folder in folders)]


def valid_bill(file: Path) -> Any:
    """Return a bill of materials after checking it against the official schema."""
    text = file.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return json.loads(text)


class Said(list[str]):
    """Collects the messages to the user; callable as a progress callback."""

    def __call__(self, text: Any) -> None:
        self.append(str(text))


@pytest.fixture
def said() -> Said:
    """Return an empty collection of messages."""
    return Said()


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.podman),
        pytest.param("apptainer", marks=pytest.mark.apptainer),
    ],
)
def engine(request: pytest.FixtureRequest, ground: BuildPaths) -> Iterator[Engine]:
    """Yield each engine in turn."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "podman":
            use_podman(patch)
        found = ENGINES[request.param](ground)
        demand(found.unavailable())
        yield found


def use_podman(patch: pytest.MonkeyPatch) -> str:
    """Make the Podman of the tests the one that everything finds, ``connect()`` of tests too; return its socket."""
    socket = os.environ.get("ENVMATRIX_TEST_PODMAN")
    demand(None if socket else "no Podman service: set ENVMATRIX_TEST_PODMAN to its socket")
    for name in ("CONTAINER_HOST", "DOCKER_HOST"):
        patch.setenv(name, str(socket))
    return str(socket)


@pytest.fixture(scope="session")
def prepared(engine: Engine) -> Prepared:
    return engine.prepare(IMAGE, LIBRARIES, Said())


@pytest.fixture
def job(prepared: Prepared, ground: BuildPaths, tmp_path: Path) -> Job:
    """Return a job without a program; tests fill it in."""
    work = tmp_path / "work"
    work.mkdir()
    return Job(
        f"test-{tmp_path.name}", "t1", prepared, (), {}, (),
        Mounts(work, {"bench": ground.bench}), Limits(seconds=120, shm_bytes=2**28), tmp_path / "log",
    )  # fmt: skip


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Serve an empty registry on the loopback interface and yield its address."""
    program = shutil.which("docker-registry")
    demand(None if program else "no docker-registry: apt-get install docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = tmp_path / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{address}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
    )
    server = subprocess.Popen([str(program), "serve", str(settings)], stdout=subprocess.DEVNULL)
    try:
        _wait_for(address)
        yield address
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(address: str) -> None:
    host, port = address.split(":")
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"the registry at {address} did not come up")

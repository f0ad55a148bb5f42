"""Small real wheels, a cache of its own per test, and engines that must be there where CI says so."""

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
from envmatrix.engines.docker_client import DockerClient, connect
from envmatrix.plan.environment import Image, Library
from envmatrix.system import project

IMAGE = Image("tiny", requirements=("tinypkg==1.0",))
LIBRARIES = (Library("malloc-jemalloc", (), ("libjemalloc2",), ("libjemalloc.so.2",)),)
MakeWheel = Callable[..., Path]
#: A stand-in for bench/ that says what it sees.
BENCH = """
import os, json, sys
json.dump({"arguments": sys.argv[1:], "variables": dict(os.environ), "uid": os.getuid()}, sys.stdout)
"""


def write_wheel(folder: Path, name: str, version: str, files: dict[str, bytes], needs: str = "") -> Path:
    """Write a valid wheel for any Python that holds ``files``, and that ``needs`` another one."""
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
    """Give a folder of wheels that is all the host's pip knows."""
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
    """Give one folder for the pip that all tests of a session use."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture
def places(tmp_path: Path, tools: Path) -> BuildPaths:
    """Give an empty cache and an empty folder of locks."""
    root = tmp_path / "cache"
    root.mkdir()
    (root / "tools").symlink_to(tools)
    (tmp_path / "locks").mkdir()
    return BuildPaths(Cache(root), tmp_path / "locks", tmp_path / "bench")


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildPaths]:
    """Give places whose cache is the user's (bases are large), and wheels of a few bytes."""
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
        yield BuildPaths(Cache(project.cache_folder()), folder / "locks", folder / "bench")


def demand(reason: str | None) -> None:
    """Skip where an engine is absent; fail instead where CI has set ENVMATRIX_REQUIRE_ENGINES=1."""
    if reason and os.environ.get("ENVMATRIX_REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def seconds_of(prepare: Callable[[], object], expected: object) -> float:
    """Return the wall time of ``prepare``, which gives what is expected; the least of some is not the load."""
    started = time.monotonic()
    assert prepare() == expected
    return time.monotonic() - started


def images_of_build(client: DockerClient, stage: str) -> set[str]:
    """Return all images, its unnamed ones too, of builds whose name so begins: others may build beside a test."""
    label = "org.envmatrix.stage"
    found = client.images.list(all=True, filters={"label": label})
    return {str(image.id) for image in found if image.labels[label].startswith(stage)}


def untagged(label: str) -> list[str]:
    """Return the images of that label which no name leads to, with the Docker API's engine."""
    client = connect()
    try:
        return [str(image.id) for image in client.images.list(filters={"dangling": True, "label": label})]
    finally:
        client.close()


def labels_of(reference: str) -> dict[str, str]:
    """Return the labels of an image or a SIF, without those that an engine adds of its own."""
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
    """Return the lines of what a SIF says of itself that name a folder of the machine it was built on."""
    argv = ["apptainer", "inspect", "--all", "--json", sif]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "deffile.from" in said
    folders = (str(project.cache_folder()), "/dev/shm/")
    return [line for line in said.splitlines() if any(folder in line for folder in folders)]


def valid_bill(file: Path) -> Any:
    """Return a bill of materials that the official schema holds for."""
    text = file.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return json.loads(text)


class Said(list[str]):
    """What was said to the user; call it as a ``Say``."""

    def __call__(self, text: Any) -> None:
        self.append(str(text))


@pytest.fixture
def said() -> Said:
    """Collect what is said."""
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
    """Give each engine in turn; Podman is the docker engine on Podman's socket."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "podman":
            socket = os.environ.get("ENVMATRIX_TEST_PODMAN")
            demand(None if socket else "no Podman service: set ENVMATRIX_TEST_PODMAN to its socket")
            patch.setenv("DOCKER_HOST", str(socket))
        found: Engine = ApptainerEngine(ground) if request.param == "apptainer" else DockerEngine(ground)
        demand(found.unavailable())
        yield found


@pytest.fixture(scope="session")
def prepared(engine: Engine) -> Prepared:
    return engine.prepare(IMAGE, LIBRARIES, Said())


@pytest.fixture
def job(prepared: Prepared, ground: BuildPaths, tmp_path: Path) -> Job:
    """Give a job whose program a test fills in."""
    work = tmp_path / "work"
    work.mkdir()
    return Job(
        f"test-{tmp_path.name}", "t1", prepared, (), {}, (),
        Mounts(work, {"bench": ground.bench}), Limits(seconds=120, shm_bytes=2**28), tmp_path / "log",
    )  # fmt: skip


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Serve an empty registry on the loopback interface; give its address."""
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

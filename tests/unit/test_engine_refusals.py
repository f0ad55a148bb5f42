"""What an engine or an image that cannot be used is told with: what is wrong, and on a second line what to type."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from envmatrix.api import machine_checks
from envmatrix.build.cache import Cache
from envmatrix.build.paths import BuildPaths
from envmatrix.engines import docker_api
from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.base import Engine, check_usable
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_api import docker_errors
from envmatrix.engines.enroot import EnrootEngine
from envmatrix.engines.podman import PodmanEngine
from envmatrix.engines.ready_made_images import ready_image_id
from envmatrix.errors import EngineError, EnvmatrixError, SkipEnvironmentError
from envmatrix.plan.environment import Image

pytestmark = pytest.mark.usefixtures("no_engines")


@pytest.fixture
def places(tmp_path: Path) -> BuildPaths:
    return BuildPaths(Cache(tmp_path / "cache"), tmp_path, tmp_path)


def two_lines(error: EnvmatrixError) -> tuple[str, str]:
    what, remedy = str(error).splitlines()
    assert remedy.startswith("  -> ")
    return what, remedy


def refusal(engine: Engine) -> tuple[str, str]:
    with pytest.raises(EngineError) as caught:
        check_usable(engine)
    return two_lines(caught.value)


def add_podman(tmp_path: Path, script: str) -> None:
    program = tmp_path / "bin" / "podman"
    program.write_text(script)
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("kind", "what", "remedy"),
    [
        (DockerEngine, "nothing listens at", "install Docker or Podman"),
        (PodmanEngine, "there is no Podman here", "install Podman, or `systemctl --user start podman.socket`"),
        (ApptainerEngine, "neither apptainer nor singularity is on PATH", "install it: https://apptainer.org"),
        (EnrootEngine, "enroot is not on PATH", "install it: https://github.com/NVIDIA/enroot"),
    ],
)
def test_an_engine_that_is_not_installed_is_told_with_what_to_type(
    places: BuildPaths, kind: type[Engine], what: str, remedy: str
) -> None:
    said = refusal(kind(places))  # type: ignore[call-arg]
    assert what in said[0]
    assert remedy in said[1]


@pytest.mark.parametrize(
    ("name", "kind", "remedies"),
    [
        ("CONTAINER_HOST", PodmanEngine, ("unset CONTAINER_HOST", "start podman.socket")),
        ("DOCKER_HOST", DockerEngine, ("install Docker or Podman",)),
    ],
)
def test_a_named_socket_without_a_service_is_told_with_what_to_type(
    places: BuildPaths, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[Engine], remedies: tuple[str, ...]
) -> None:
    monkeypatch.setenv(name, "unix:///nonexistent/p.sock")
    what, remedy = refusal(kind(places))  # type: ignore[call-arg]
    assert "nothing listens at unix:///nonexistent/p.sock" in what
    assert all(words in remedy for words in remedies)


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """Serve a socket that takes connections and never answers, as one of a stopped service; yield its URL."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "silent.sock"))
        server.listen()
        yield f"unix://{tmp_path}/silent.sock"


@pytest.mark.timeout(60)
def test_a_service_that_never_answers_is_not_waited_for(
    places: BuildPaths, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_api, "_ANSWER_S", 1)
    monkeypatch.setenv("CONTAINER_HOST", silent)
    what, remedy = refusal(PodmanEngine(places))
    assert f"the engine at {silent} does not answer" in what
    assert "`systemctl --user restart podman`" in remedy


def test_a_service_that_does_not_start_is_told_with_its_last_line(places: BuildPaths, tmp_path: Path) -> None:
    add_podman(tmp_path, "#!/bin/sh\necho 'level=warning one'; echo 'cannot clone: no user namespaces' >&2; exit 125\n")
    what, remedy = refusal(PodmanEngine(places))
    assert what.endswith("`podman system service` does not start: cannot clone: no user namespaces")
    assert "`podman info`" in remedy


SERVICE = f"""#!{sys.executable}
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[-1].removeprefix("unix://"))
    server.listen()
    server.settimeout(0.05)
    while not os.path.exists(sys.argv[0] + ".ends"):
        try:
            server.accept()
        except socket.timeout:
            pass
"""


def test_a_service_of_ours_that_ended_is_started_again(places: BuildPaths, tmp_path: Path) -> None:
    add_podman(tmp_path, SERVICE)
    engine = PodmanEngine(places)
    first = engine.host()
    assert engine.host() == first
    ends = tmp_path / "bin" / "podman.ends"
    ends.touch()
    while docker_api.answers(first.removeprefix("unix://")):
        pass
    ends.unlink()
    assert engine.host() != first


def test_doctor_puts_the_remedy_of_an_engine_on_a_line_of_its_own() -> None:
    found = {finding.subject: finding for finding in machine_checks.check_engines(Path("/"))}
    for name in ("docker", "podman", "apptainer", "enroot"):
        finding = found[f"engine {name}"]
        assert finding.state == "note"
        assert finding.remedy
        assert "\n" not in finding.found


@dataclass
class Registry:
    """A client of an engine that has no image, or one; its pulls say ``lines``, or fail with ``error``."""

    lines: tuple[dict[str, str], ...] = ()
    error: Exception | None = None
    architecture: str = ""
    asked: list[str] = field(default_factory=list)

    @property
    def images(self) -> Any:
        return SimpleNamespace(get=self._get)

    @property
    def api(self) -> Any:
        return SimpleNamespace(pull=self._pull)

    def version(self) -> dict[str, str]:
        return {"Arch": "amd64"}

    def _get(self, reference: str) -> Any:
        self.asked.append(reference)
        if not self.architecture:
            raise ImageNotFound("no such image")
        return SimpleNamespace(id="sha256:1", attrs={"Architecture": self.architecture})

    def _pull(self, reference: str, **_: object) -> Iterator[dict[str, str]]:
        if self.error:
            raise self.error
        yield from self.lines


def find(registry: Registry, engine: str) -> str:
    client: Any = registry
    return ready_image_id(client, engine, Image("mine", ready="team/train:1"), lambda _: None)


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize(
    "registry",
    [
        Registry(lines=({"status": "Trying"}, {"error": "initializing source:\nno such host"})),
        Registry(error=APIError("500 Server Error", explanation="initializing source:\nno such host")),
    ],
)
def test_an_image_that_is_nowhere_is_told_with_the_registrys_words(registry: Registry, engine: str) -> None:
    with pytest.raises(EngineError) as caught:
        find(registry, engine)
    what, remedy = two_lines(caught.value)
    assert what == "image team/train:1 is not here, and cannot be pulled: initializing source: no such host"
    assert f"`{engine} images` lists those that are here" in remedy


def test_a_disk_that_fills_during_a_pull_is_told_as_that() -> None:
    with pytest.raises(EngineError, match="no space left on device") as caught:
        find(Registry(lines=({"error": "writing blob: no space left on device"},)), "podman")
    assert "cannot be pulled" not in str(caught.value)


def test_an_image_for_other_processors_is_refused_before_it_starts() -> None:
    assert find(Registry(architecture="amd64"), "podman") == "sha256:1"
    with pytest.raises(SkipEnvironmentError) as caught:
        find(Registry(architecture="arm64"), "podman")
    what, remedy = two_lines(caught.value)
    assert what == "image team/train:1 is for processors of another architecture: arm64; these are amd64"
    assert "`podman pull --platform linux/amd64 REF`" in remedy


def test_limits_that_root_of_a_container_may_not_raise_are_told_with_the_setting_that_lowers_them() -> None:
    """Podman's own default is above the limits of such a root."""
    with pytest.raises(EngineError) as caught, docker_errors("starting t1"):
        raise APIError("500 Server Error (runc: error setting rlimit type 7: operation not permitted)")
    what, remedy = two_lines(caught.value)
    assert what == "starting t1: limits may not be raised here, as by root of most containers"
    assert "default_ulimits = " in remedy


def test_an_error_of_many_lines_is_told_in_one() -> None:
    with pytest.raises(EngineError) as caught, docker_errors("starting t1"):
        raise APIError("500 Server Error:\nOCI runtime error:\nexec failed")
    assert two_lines(caught.value)[0] == "starting t1: 500 Server Error: OCI runtime error: exec failed"

"""Where engine podman finds Podman's API, what it says if there is none, and which limits it refuses to ignore."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envmatrix.build.cache import Cache
from envmatrix.build.paths import BuildPaths
from envmatrix.engines import docker_api
from envmatrix.engines.base import Limits
from envmatrix.engines.catalog import choose_engine
from envmatrix.engines.docker import DockerEngine, _container_user, container_config
from envmatrix.engines.docker_api import podman_host
from envmatrix.engines.podman import PodmanEngine
from envmatrix.errors import EngineError
from envmatrix.launchers import doctor_software_checks
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.plan.environment import Environment, Image
from envmatrix.trials.interleaving_eligibility import non_interleaved_arms
from tests.unit.test_engine_commands import JOB

pytestmark = pytest.mark.usefixtures("no_engines")


@pytest.fixture
def engine(tmp_path: Path) -> PodmanEngine:
    return PodmanEngine(BuildPaths(Cache(tmp_path / "cache"), tmp_path, tmp_path))


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Serve the user's socket and the system's; yield their paths."""
    paths = (tmp_path / "user" / "podman" / "podman.sock", tmp_path / "system.sock")
    servers = []
    for path in paths:
        servers.append(socket.socket(socket.AF_UNIX))
        servers[-1].bind(str(path))
        servers[-1].listen()
    yield paths
    for server in servers:
        server.close()


def test_the_named_socket_comes_before_yours_and_yours_before_the_systems(
    sockets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, system = sockets
    assert podman_host() == f"unix://{own}"
    own.unlink()
    assert podman_host() == f"unix://{system}"
    monkeypatch.setenv("CONTAINER_HOST", "tcp://127.0.0.1:9")
    assert podman_host() == "tcp://127.0.0.1:9"


def test_a_socket_that_a_dead_service_left_is_passed_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "user" / "podman" / "podman.sock"))
    assert podman_host() == ""


def test_without_podman_the_error_names_the_command_that_starts_its_socket(engine: PodmanEngine) -> None:
    assert "systemctl --user start podman.socket" in str(engine.unavailable())
    with (
        pytest.raises(EngineError, match=r"(?s)no Podman here.*systemctl --user start podman.socket"),
        engine.client("x"),
    ):
        pass


def test_a_named_socket_where_nobody_listens_is_told_with_the_command_that_starts_it(
    engine: PodmanEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host, said in (("unix:///nonexistent/p.sock", "nothing listens at"), ("tcp://127.0.0.1:9", "is down")):
        monkeypatch.setenv("CONTAINER_HOST", host)
        reason = str(engine.unavailable())
        assert f"{host}" in reason
        assert said in reason
        assert "systemctl --user start podman.socket" in reason


def test_docker_does_not_take_podmans_socket_and_names_the_engine_that_does(
    sockets: tuple[Path, Path], tmp_path: Path
) -> None:
    for path in sockets:
        assert "use `--engine podman`" in str(docker_api.why_not())
        path.unlink()
    assert "install Docker or Podman" in str(docker_api.why_not())
    program = tmp_path / "bin" / "podman"
    program.write_text("")
    program.chmod(0o755)
    reason = str(docker_api.why_not())
    assert reason.startswith(f"nothing listens at unix://{tmp_path}/docker.sock")
    assert "use `--engine podman`" in reason


def client(version: str = "4.3.1", controllers: tuple[str, ...] = (), *, rootless: bool = False) -> Any:
    """Return a client of a Podman of that version with these controllers."""
    return SimpleNamespace(
        version=lambda: {"Version": version},
        info=lambda: {"Rootless": rootless, "SecurityOptions": ["name=seccomp,profile=default"]},
        api=SimpleNamespace(
            base_url="http+docker://localhost",
            get=lambda _: SimpleNamespace(json=lambda: {"host": {"cgroupControllers": list(controllers)}}),
        ),
    )


def use_client(monkeypatch: pytest.MonkeyPatch, **info: object) -> None:
    """Make a Podman that says ``info`` of itself the one that is found."""
    found = SimpleNamespace(info=lambda: {"Rootless": True, **info})
    monkeypatch.setattr(PodmanEngine, "client", lambda self, doing: contextlib.nullcontext(found))


def test_storage_that_copies_whole_images_is_told_before_it_is_waited_for(
    engine: PodmanEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DockerEngine, "prepare", lambda self, image, libraries, progress: None)
    monkeypatch.setattr(PodmanEngine, "unavailable", lambda self: None)
    for driver, told in (("overlay", False), ("vfs", True)):
        use_client(monkeypatch, Driver=driver)
        said: list[str] = []
        engine.prepare(Image("mine"), (), said.append)
        findings = list(doctor_software_checks.check_podman_storage(Path("/")))
        assert [finding.found for finding in findings] == [line.splitlines()[0] for line in said]
        assert bool(said) == told
    assert "copies the whole image" in said[0]
    assert "podman system reset" in said[0]


def test_a_rootless_podman_that_cannot_pause_interleaves_nothing_that_it_would_have_to_pause(
    engine: PodmanEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of your own is paused by its wrapper, inside."""
    environments = {"baseline": Environment("baseline", "", {}, Image("i"), {}, (), ())}
    workloads = {
        "builtin": Workload.model_validate({"name": "builtin"}),
        "own": Workload.model_validate({"name": "own", "command": ("python", "x.py"), "metric": {"wall": True}}),
    }
    arms = [Arm(name, "baseline", "baseline", name, "podman", None) for name in workloads]
    for version, expected in (("2", []), ("1", ["builtin"])):
        use_client(monkeypatch, CgroupVersion=version)
        found = non_interleaved_arms(arms, environments, workloads, {"podman": engine})
        assert list(found) == expected
    assert "version 2 of control groups" in found["builtin"]


@pytest.mark.parametrize(
    ("limits", "missing"),
    [
        (Limits(9.0), ""),
        (Limits(9.0, memory_bytes=2**30), ""),
        (Limits(9.0, cpus=(0,)), "cpuset"),
        (Limits(9.0, cpu_quota=1.5, memory_nodes=(0,)), "cpu, cpuset"),
    ],
)
def test_a_limit_that_a_rootless_podman_would_ignore_is_refused(
    engine: PodmanEngine, limits: Limits, missing: str
) -> None:
    job = replace(JOB, limits=limits)
    engine.check_limits(client(), job)
    rootless = client(rootless=True, controllers=("memory", "pids"))
    if not missing:
        engine.check_limits(rootless, job)
        return
    with pytest.raises(EngineError, match=f": {missing}\n") as caught:
        engine.check_limits(rootless, job)
    assert "Delegate=" in str(caught.value.remedy)


def test_the_user_inside_a_rootless_engine_is_root_who_is_you_outside() -> None:
    """Podman 4.3 says so in another field than Docker; a number of its own could not write the work folder."""
    docker = SimpleNamespace(info=lambda: {"SecurityOptions": ["name=seccomp", "name=rootless"]})
    for one in (client(rootless=True), docker):
        assert _container_user(one) == "0:0"
    assert _container_user(client()) != "0:0"


def test_gpus_are_asked_for_by_their_cdi_names_and_refused_where_podman_would_ignore_them(engine: PodmanEngine) -> None:
    job = replace(JOB, prepared=replace(JOB.prepared, engine="podman"), limits=Limits(9.0, gpus=("0", "1")))
    host: Any = container_config(job, "1:1", Path("/cache"))["HostConfig"]
    (request,) = host["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=0", "nvidia.com/gpu=1"])
    job = replace(job, prepared=replace(job.prepared, facts={"torch": "2.10.0+cu128"}))
    engine.check_limits(client("5.4.0"), job)
    with pytest.raises(EngineError, match=r"Podman 4\.9\.3 gives containers no NVIDIA GPUs"):
        engine.check_limits(client("4.9.3"), job)


def test_engine_auto_takes_podman_only_without_docker_and_apptainer(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("docker.DockerEngine", "apptainer.ApptainerEngine"):
        monkeypatch.setattr(f"envmatrix.engines.{engine}.unavailable", lambda self: "not here")
    monkeypatch.setattr(PodmanEngine, "unavailable", lambda self: None)
    said: list[str] = []
    assert choose_engine(said.append) == "podman"
    assert said == ["engine auto: podman (no docker: not here; no apptainer: not here)"]

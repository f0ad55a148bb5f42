"""Connect to Docker's API, of Docker or of Podman, and convert its errors."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import docker
import requests.exceptions
from docker import DockerClient
from docker.errors import APIError, BuildError, DockerException, ImageNotFound, NotFound

from envmatrix.build.cache import disk_full_error, is_disk_full
from envmatrix.errors import EngineError

#: Seconds for an answer to a request, and to whether an engine is there at all.
_API_S, _ANSWER_S = 3600, 60
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DOCKER_SOCKET, _PODMAN_SOCKET = "/var/run/docker.sock", "/run/podman/podman.sock"
#: Where the last connection went, for messages: a process may use several engines.
_address: ContextVar[str] = ContextVar("address", default=f"unix://{_DOCKER_SOCKET}")
PODMAN_REMEDY = "`systemctl --user start podman.socket` (as root without --user)"


def connect(host: str = "", timeout_s: int = _API_S) -> DockerClient:
    """Connect to the API at ``host``; '': $DOCKER_HOST, Docker's default socket, or rootless Docker's."""
    from_variables = not host and os.environ.get("DOCKER_HOST")
    _address.set(host or from_variables or f"unix://{_docker_socket()}")
    if from_variables:
        return docker.from_env(timeout=timeout_s)
    return DockerClient(base_url=_address.get(), timeout=timeout_s)


def _docker_socket() -> str:
    own = Path(_runtime_folder(), "docker.sock")
    return str(own) if own.exists() and not Path(_DOCKER_SOCKET).exists() else _DOCKER_SOCKET


def _runtime_folder() -> str:
    """Return the folder of this user's sockets."""
    return os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")


def podman_host() -> str:
    """Return $CONTAINER_HOST, or the first of Podman's sockets that answers, yours before the system's; '': none."""
    if host := os.environ.get("CONTAINER_HOST"):
        return host
    paths = (f"{_runtime_folder()}/podman/podman.sock", _PODMAN_SOCKET)
    return next((f"unix://{path}" for path in paths if answers(path)), "")


def answers(path: str) -> bool:
    """Return whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(path)
        return True
    return False


def why_not(host: str = "") -> str | None:
    """Return why no engine responds at ``host``, with a remedy; None if one does."""
    try:
        client = connect(host, _ANSWER_S)
        try:
            client.ping()
        finally:
            client.close()
    except (DockerException, requests.exceptions.RequestException) as error:
        text, where = str(error), _address.get()
        restart = "`systemctl --user restart podman`" if _is_podman(where) else "`sudo systemctl restart docker`"
        problem = f"the engine at {where} does not answer: {_one_line(text)[:200]}", restart
        return "\n  -> ".join(_no_connection(text) or problem)
    return None


def _is_podman(where: str) -> bool:
    return "podman" in where or where == os.environ.get("CONTAINER_HOST")


def _no_connection(text: str) -> tuple[str, str] | None:
    """Return why the last connection failed and the remedy; None: for another reason."""
    where = _address.get()
    named = "`unset CONTAINER_HOST`, or " if where == os.environ.get("CONTAINER_HOST") else ""
    podman = f"{named}{PODMAN_REMEDY}" if _is_podman(where) else ""
    if "Permission denied" in text or "PermissionError" in text:
        group = "`sudo usermod -aG docker $USER` and log in again, or use `--engine podman`"
        return f"no permission for {where}", podman or group
    if "FileNotFoundError" in text or "No such file" in text:
        return f"nothing listens at {where}", podman or _docker_remedy()
    if "Connection refused" in text or "ConnectionRefused" in text:
        return f"the daemon at {where} is down", podman or "`sudo systemctl start docker`"
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _docker_remedy() -> str:
    if podman_host() or shutil.which("podman"):
        return "Podman is here: use `--engine podman`"
    return "install Docker or Podman, or set DOCKER_HOST to its socket"


@contextlib.contextmanager
def docker_errors(doing: str) -> Iterator[None]:
    """Convert errors of the SDK to EngineError with the failed action and a remedy."""
    try:
        yield
    except BuildError as error:
        raise _build_error(doing, error) from error
    except (DockerException, requests.exceptions.RequestException) as error:
        raise _engine_error(doing, str(error)) from error


def _build_error(doing: str, error: BuildError) -> EngineError:
    raw = "".join(str(line.get("stream") or line.get("error") or "") for line in error.build_log)
    output = _COLOUR.sub("", raw)
    lines = [line for line in output.splitlines() if line.strip()]
    error_lines = [line for line in lines if line.startswith(("E:", "ERROR", "The following packages have unmet"))]
    return _engine_error(doing, "; ".join(error_lines[-3:] or lines[-3:]) + f" ({str(error.msg)[-80:]})")


def _engine_error(doing: str, text: str) -> EngineError:
    if is_disk_full(text):
        return disk_full_error(_images_folder(_address.get()))
    if "unmet dep" in text or "Unable to correct" in text or "unable to fetch" in text.lower():
        return EngineError(
            f"{doing}: the base image lacks a package that the lock requires: {text[:400]}",
            remedy="lock again for this base image: `envmatrix lock`",
        )
    if "requested cpus are not available" in text.lower():
        return EngineError(
            f"{doing}: the engine's machine lacks a requested CPU: {text[-120:]}",
            remedy="change `cpus` of the level or the design, or --cpus",
        )
    if "error setting rlimit" in text:
        return EngineError(
            f"{doing}: limits may not be raised here, as by root of most containers",
            remedy='write `default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]` below `[containers]` to '
            "/etc/containers/containers.conf",
        )
    cause, remedy = _no_connection(text) or (_one_line(text)[:600], "run `envmatrix doctor` to see which engines work")
    return EngineError(f"{doing}: {cause}", remedy=remedy)


def _images_folder(where: str) -> Path:
    """Return the folder of the images of the engine at an address, or its socket."""
    if _is_podman(where):
        return Path("/var/lib/containers") if os.getuid() == 0 else Path.home() / ".local/share/containers"
    place = where.removeprefix("unix://")
    return Path("/var/lib/docker" if place == _DOCKER_SOCKET else place)


def pull(client: DockerClient, reference: str) -> None:
    """Pull an image. Raises DockerException, also for an error amid the answer, which ``images.pull`` overlooks."""
    for line in client.api.pull(reference, stream=True, decode=True):
        if error := line.get("error"):
            raise DockerException(error)


def is_rootless(client: DockerClient) -> bool:
    """Return whether root of a container is the caller; Docker and Podman say so in different fields."""
    info = client.info()
    return bool(info.get("Rootless")) or any("rootless" in str(option) for option in info.get("SecurityOptions") or [])


def remove(client: DockerClient, container: str) -> None:
    """Remove a container if it still exists."""
    with contextlib.suppress(NotFound):
        client.api.remove_container(container, force=True, v=True)


__all__ = [
    "PODMAN_REMEDY", "APIError", "DockerClient", "DockerException", "ImageNotFound", "NotFound", "answers", "connect",
    "docker_errors", "is_rootless", "podman_host", "pull", "remove", "why_not",
]  # fmt: skip

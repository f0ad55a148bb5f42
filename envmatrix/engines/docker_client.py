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

_API_S = 3600
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DOCKER_SOCKET, _PODMAN_SOCKET = "/var/run/docker.sock", "/run/podman/podman.sock"
#: Where the last connection went, for messages: a process may use several engines.
_address: ContextVar[str] = ContextVar("address", default=f"unix://{_DOCKER_SOCKET}")
PODMAN_REMEDY = "`systemctl --user start podman.socket` (as root without --user)"


def connect(host: str = "") -> DockerClient:
    """Connect to the API at ``host``; '': $DOCKER_HOST, Docker's default socket, or rootless Docker's."""
    from_variables = not host and os.environ.get("DOCKER_HOST")
    _address.set(host or from_variables or f"unix://{_docker_socket()}")
    if from_variables:
        return docker.from_env(timeout=_API_S)
    return DockerClient(base_url=_address.get(), timeout=_API_S)


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
        client = connect(host)
        try:
            client.ping()
        finally:
            client.close()
    except (DockerException, requests.exceptions.RequestException) as error:
        return _reason(str(error))
    return None


def _reason(text: str) -> str:
    where = _address.get()
    podman = "podman" in where or where == os.environ.get("CONTAINER_HOST")
    if "Permission denied" in text or "PermissionError" in text:
        group = "`sudo usermod -aG docker $USER` and log in again, or use `--engine podman`"
        return f"no permission for {where}: {PODMAN_REMEDY if podman else group}"
    if "FileNotFoundError" in text or "No such file" in text:
        return f"nothing listens at {where}: {PODMAN_REMEDY if podman else _docker_remedy()}"
    if "Connection refused" in text or "ConnectionRefused" in text:
        return f"the daemon at {where} is down: {PODMAN_REMEDY if podman else '`sudo systemctl start docker`'}"
    return f"the engine at {where} does not answer: {text[:200]}"


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
        place = _address.get().removeprefix("unix://")
        return disk_full_error(Path("/var/lib/docker" if place == _DOCKER_SOCKET else place))
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
    reason = _reason(text)
    cause = reason if "does not answer" not in reason else text[:600]
    return EngineError(f"{doing}: {cause}", remedy="run `envmatrix doctor` to see which engines work")


def is_rootless(client: DockerClient) -> bool:
    """Return whether root of a container is the caller; Docker and Podman say so in different fields."""
    info = client.info()
    return bool(info.get("Rootless")) or any("rootless" in str(option) for option in info.get("SecurityOptions") or [])


def remove(client: DockerClient, container: str) -> None:
    """Remove a container if it still exists."""
    with contextlib.suppress(NotFound):
        client.api.remove_container(container, force=True, v=True)


__all__ = [
    "PODMAN_REMEDY", "APIError", "DockerClient", "ImageNotFound", "NotFound", "connect", "docker_errors",
    "is_rootless", "podman_host", "remove", "why_not",
]  # fmt: skip

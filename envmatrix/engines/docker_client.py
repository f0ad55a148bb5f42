"""Connect to a Docker-API socket (Docker, Podman), and convert its errors."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import docker
import requests.exceptions
from docker import DockerClient
from docker.errors import APIError, BuildError, DockerException, ImageNotFound, NotFound

from envmatrix.build.cache import disk_full_error, is_disk_full
from envmatrix.errors import EngineError

_API_S = 3600
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def connect() -> DockerClient:
    """Connect to $DOCKER_HOST, Docker's default socket, or the user's Podman socket, in this order."""
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
        for socket in (f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock", "/run/podman/podman.sock"):
            if Path(socket).exists():
                return DockerClient(base_url=f"unix://{socket}", timeout=_API_S)
    return docker.from_env(timeout=_API_S)


def why_not() -> str | None:
    """Return why no engine responds, with a remedy; None if one does."""
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        client = connect()
        try:
            client.ping()
        finally:
            client.close()
    except (DockerException, requests.exceptions.RequestException) as error:
        return _reason(str(error), where)
    return None


def _reason(text: str, where: str) -> str:
    if "Permission denied" in text or "PermissionError" in text:
        return f"no permission for {where}: `sudo usermod -aG docker $USER` and log in again, or use rootless Podman"
    if "FileNotFoundError" in text or "No such file" in text:
        return f"nothing listens at {where}: install Docker or Podman, or set DOCKER_HOST to its socket"
    if "Connection refused" in text or "ConnectionRefused" in text:
        return f"the daemon at {where} is down: `sudo systemctl start docker`"
    return f"the engine at {where} does not answer: {text[:200]}"


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
        return disk_full_error(Path(os.environ.get("DOCKER_HOST", "/var/lib/docker").removeprefix("unix://")))
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
    reason = _reason(text, os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    cause = reason if "does not answer" not in reason else text[:600]
    return EngineError(f"{doing}: {cause}", remedy="run `envmatrix doctor` to see which engines work")


__all__ = ["APIError", "DockerClient", "ImageNotFound", "NotFound", "connect", "docker_errors", "why_not"]

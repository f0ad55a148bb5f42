"""Command that removes a container and its processes; the cleanup watcher runs it if envmatrix is killed."""

from __future__ import annotations

import contextlib
import sys

from envmatrix.engines.docker_client import DockerClient, NotFound, connect, docker_errors


def remove(client: DockerClient, container: str) -> None:
    """Remove a container if it still exists."""
    with contextlib.suppress(NotFound):
        client.api.remove_container(container, force=True, v=True)


if __name__ == "__main__":
    with docker_errors(f"removing {sys.argv[1]}"):
        remove(connect(), sys.argv[1])

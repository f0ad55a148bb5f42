"""Command that removes a container and its processes; the cleanup watcher runs it if envmatrix is killed."""

from __future__ import annotations

import sys

from envmatrix.engines.catalog import find_engine
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_api import remove

if __name__ == "__main__":
    engine_name, container_id = sys.argv[1:]
    engine = find_engine(engine_name)
    if isinstance(engine, DockerEngine):
        with engine.client(f"removing {container_id}") as client:
            remove(client, container_id)

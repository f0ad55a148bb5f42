"""Docker builds: an image with a Debian suite's own Python, one that cannot be built, and a build that is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Engine, Prepared
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_api import connect
from envmatrix.engines.docker_images import DockerImages
from envmatrix.errors import EngineError
from envmatrix.plan.environment import Image
from tests.engines.conftest import IMAGE, LIBRARIES, Said, demand, images_of_build


@pytest.mark.docker
def test_a_debian_suites_own_packages_make_an_image_of_the_systems_python(ground: BuildPaths, said: Said) -> None:
    engine = DockerEngine(ground)
    demand(engine.unavailable())
    prepared = engine.prepare(Image("debian", suite="trixie", apt=("python3-absent | python3-six",)), (), said)
    assert prepared.python == "/usr/bin/python3"
    assert prepared.facts["system python3-six"]
    assert prepared.facts["system python3"].startswith("3.13")


@pytest.mark.docker
def test_a_failed_build_is_one_clear_error_and_leaves_no_container_and_no_image(
    ground: BuildPaths, tmp_path: Path
) -> None:
    demand(DockerEngine(ground).unavailable())
    client = connect()
    (tmp_path / "debs").mkdir()
    text = 'FROM scratch AS build\nLABEL org.envmatrix.stage="envmatrix/broken:1"\nCOPY absent /x\n'
    with pytest.raises(EngineError, match="building envmatrix/broken"):
        DockerImages(client, ground).build_from(tmp_path, text, "envmatrix/broken:1", {})
    assert images_of_build(client, "envmatrix/broken:1") == set()
    assert not client.containers.list(all=True, filters={"label": "org.envmatrix.stage=envmatrix/broken:1"})


#: Looks into an image for longer than the test lasts.
LOOKS = """
import sys
from pathlib import Path
from envmatrix.build.cache import Cache
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.catalog import find_engine
from envmatrix.engines.docker_images import DockerImages
places = BuildPaths(Cache(Path(sys.argv[1])), Path(), Path())
with find_engine(sys.argv[2], places).client("looking") as client:
    DockerImages(client, places).output(sys.argv[3], ["sleep", "600"])
"""


def test_what_a_killed_build_left_is_removed_by_the_next_one_and_a_living_ones_container_is_not(
    engine: Engine, prepared: Prepared, ground: BuildPaths
) -> None:
    if not isinstance(engine, DockerEngine):
        pytest.skip("it has no containers of a daemon")

    def builds() -> dict[str, str]:
        labels = ["org.envmatrix.run=build", f"org.envmatrix.cache={ground.cache.root}"]
        with engine.client("looking") as client:
            found = client.containers.list(all=True, filters={"label": labels})
        return {one.labels["org.envmatrix.owner"]: one.status for one in found}

    argv = [sys.executable, "-c", LOOKS, str(ground.cache.root), engine.name, prepared.reference]
    killed, living = (subprocess.Popen(argv) for _ in range(2))
    try:
        for _ in range(300):
            if builds() == {str(killed.pid): "running", str(living.pid): "running"}:
                break
            time.sleep(0.1)
        killed.kill()
        killed.wait()
        assert len(builds()) == 2
        engine.prepare(IMAGE, LIBRARIES, Said())
        assert builds() == {str(living.pid): "running"}
    finally:
        for process in (killed, living):
            process.kill()
            process.wait()
    engine.prepare(IMAGE, LIBRARIES, Said())
    assert builds() == {}

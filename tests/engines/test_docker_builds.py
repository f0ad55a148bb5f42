"""Docker builds: an image with a Debian suite's own Python, and an image that cannot be built."""

from __future__ import annotations

from pathlib import Path

import pytest

from envmatrix.build.paths import BuildPaths
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_client import connect
from envmatrix.engines.docker_images import DockerImages
from envmatrix.errors import EngineError
from envmatrix.plan.environment import Image
from tests.engines.conftest import Said, demand, images_of_build


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

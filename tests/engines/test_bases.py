"""Bases of images: a real registry, a base that does not exist, a lock that does not fit its base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envmatrix.build.debian.minimal_base import Suite
from envmatrix.build.images.context import system_packages
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_api import DockerClient, connect
from envmatrix.errors import EngineError
from envmatrix.plan.environment import Image
from tests.engines.conftest import Said, demand, images_of_build

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]
PLAIN = Image("plain", suite="bookworm")


@pytest.fixture
def engine(ground: BuildPaths) -> DockerEngine:
    found = DockerEngine(ground)
    demand(found.unavailable())
    return found


@pytest.fixture
def client(engine: DockerEngine) -> Iterator[DockerClient]:
    client = connect()
    yield client
    client.close()


def test_a_base_is_pulled_from_a_registry_by_its_digest(
    engine: DockerEngine, client: DockerClient, registry: str
) -> None:
    made = engine.base(PLAIN, Said())
    name = f"{registry}/debian"
    client.images.get(made.reference).tag(name, "slim")
    said = str(client.images.push(name, "slim"))
    digest = said.split("digest: ")[1].split(" ")[0]
    client.images.remove(f"{name}:slim")
    pinned = f"{name}:slim@{digest}"
    prepared = engine.prepare(Image("pulled", suite="bookworm", base=pinned), (), Said())
    try:
        assert prepared.facts["base"] == prepared.facts["base_choice"] == f"{name}@{digest}"
        assert prepared.facts["system python3"].startswith("3.11")
    finally:
        client.images.remove(prepared.reference, force=True)
        client.images.remove(f"{name}@{digest}", force=True)


def test_a_base_that_no_registry_has_is_one_clear_error(engine: DockerEngine, registry: str) -> None:
    absent = f"{registry}/absent@sha256:{'0' * 64}"
    with pytest.raises(EngineError, match=rf"pulling the base image {registry}/absent"):
        engine.prepare(Image("absent", suite="bookworm", base=absent), (), Said())


def test_a_base_without_dpkg_is_refused(engine: DockerEngine, client: DockerClient, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text('FROM scratch\nLABEL x="y"\nCOPY Dockerfile /\n')
    client.images.build(path=str(tmp_path), tag="envmatrix-test/empty:1", rm=True)
    try:
        with pytest.raises(EngineError, match="is not a Debian image"):
            engine.prepare(Image("empty", suite="bookworm", base="envmatrix-test/empty:1"), (), Said())
        assert not client.containers.list(all=True, filters={"ancestor": "envmatrix-test/empty:1"})
    finally:
        client.images.remove("envmatrix-test/empty:1", force=True)


def test_a_lock_that_lacks_what_its_base_needs_is_named_and_leaves_nothing(
    engine: DockerEngine, client: DockerClient, ground: BuildPaths, tmp_path: Path
) -> None:
    base = engine.base(PLAIN, Said())
    suite = Suite(base.suite, ground.cache)
    packages = system_packages(PLAIN, suite)
    pins = tuple(pin for pin in suite.closure(packages, base.status) if pin.name != "libpython3-stdlib")
    places = BuildPaths(ground.cache, tmp_path, ground.bench)
    Locks(tmp_path, ground.cache).pin_system(suite.name_with_architecture, packages, base.choice, pins)
    before = images_of_build(client, "envmatrix/image-plain:")
    with pytest.raises(EngineError, match="the base image lacks a package that the lock requires") as caught:
        DockerEngine(places).prepare(PLAIN, (), Said())
    assert "envmatrix lock" in str(caught.value.remedy)
    assert images_of_build(client, "envmatrix/image-plain:") <= before

"""A run continues with exactly the files that it began with, or not at all."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest
from docker import DockerClient

from envmatrix.engines.docker_api import connect, why_not
from envmatrix.results import RunFolder
from tests.engines.conftest import demand
from tests.faults.conftest import Toy

pytestmark = [pytest.mark.timeout(600), pytest.mark.docker]


@pytest.fixture
def client() -> Iterator[DockerClient]:
    demand(why_not())
    client = connect()
    yield client
    client.close()


def write_into(client: DockerClient, image: str, files: dict[str, bytes]) -> None:
    """Give an image's name to a copy with some other files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    container = client.containers.create(image)
    try:
        container.put_archive("/", packed.getvalue())
        container.commit(*image.rsplit(":", 1))
    finally:
        container.remove(force=True)


def test_resume_refuses_an_image_that_holds_other_files_names_them_and_goes_on_with_its_own(
    toy: Toy, client: DockerClient
) -> None:
    toy.name_image("other-bits")
    begun = toy.run("bench", "toy", "--engine", "docker", "--max-blocks", "2")
    assert begun.returncode == 0, begun.stderr
    assert toy.newest
    (facts,) = RunFolder(toy.newest).load().images.values()
    trials = toy.trials()
    its_own = client.images.get(facts["image_id"])
    name = next(tag for tag in its_own.tags if "envmatrix/image-" in tag)
    write_into(client, name, {"etc/shells": toy.mark.encode(), "opt/other": b""})
    try:
        refused = toy.run("resume", toy.newest.name)
    finally:
        other = str(client.images.get(name).id)
        its_own.tag(*name.rsplit(":", 1))
        client.images.remove(other, force=True)
    assert refused.returncode == 2, refused.stderr
    assert "2 of its files differ: /etc/shells is another, /opt/other is new" in " ".join(refused.stderr.split())
    assert toy.trials() == trials
    assert toy.run("resume", toy.newest.name).returncode == 0

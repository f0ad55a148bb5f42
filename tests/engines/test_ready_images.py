"""An image that somebody else made, as it is, in real Docker, Podman and Apptainer."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.base import Engine, Job, Limits, Mounts, library_path
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_client import connect
from envmatrix.engines.local import LocalEngine
from envmatrix.errors import SkipEnvironmentError
from envmatrix.images.cache import file_digest
from envmatrix.images.places import Places
from envmatrix.plan.environment import Image, Library
from tests.engines.conftest import Said, builders_folders, demand, write_wheel

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
TAG = "envmatrix-test/ready:1"
LIBRARIES = (
    Library("malloc-jemalloc", (), ("libjemalloc2",), ("libjemalloc.so.2",)),
    Library("malloc-tiny", ("tinylib==1.0",), (), ("libtiny.so",)),
)
SEEN = """
import json, os
maps = open("/proc/self/maps").read()
json.dump([os.environ["MINE"], os.environ["OWN"], "libjemalloc" in maps], open("out.json", "w"))
"""


@pytest.fixture(scope="module")
def mine(ground: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make an image that has a tag and a variable of its own; give its archive."""
    demand(DockerEngine(ground).unavailable())
    body = {"tinylib-1.0.data/data/lib/libtiny.so": b"\x7fELF no library"}
    write_wheel(Path(os.environ["PIP_FIND_LINKS"]), "tinylib", "1.0", body)
    parent = DockerEngine(ground).prepare(Image("tiny", requirements=("tinypkg==1.0",)), (), Said())
    text = f"FROM {parent.facts['image_id'].removeprefix('sha256:')}\nENV MINE=of-the-image\n"
    client = connect()
    client.images.build(fileobj=io.BytesIO(text.encode()), tag=TAG, rm=True)
    archive = tmp_path_factory.mktemp("ready") / "mine.tar"
    with archive.open("wb") as file:
        file.writelines(client.images.get(TAG).save(named=True))
    yield archive
    client.images.remove(TAG, force=True)
    client.close()


def check(engine: Engine, ready: str, work: Path) -> str:
    """Prepare and use an image on an engine; return the digest that a run keeps of it, and where it lies."""
    prepared = engine.prepare(Image("mine", ready=ready), LIBRARIES, Said())
    assert prepared.variables["MINE"] == "of-the-image"
    assert prepared.facts["libc"].startswith("glibc 2.")
    assert "cannot import torch" in prepared.without_torch
    with pytest.raises(SkipEnvironmentError, match="does not load in this image"):
        library_path(prepared, "malloc-tiny", "libtiny.so")
    preload = (library_path(prepared, "malloc-jemalloc", "libjemalloc.so.2"),)
    work.mkdir()
    job = Job(
        "ready-images", work.name, prepared, (prepared.python, "-c", SEEN), {"OWN": "of the trial"}, preload,
        Mounts(work, {}), Limits(60.0), work.parent / f"{work.name}.log",
    )  # fmt: skip
    ended = engine.run(job)
    assert ended.ok, (work.parent / f"{work.name}.log").read_text()
    assert json.loads((work / "out.json").read_text()) == ["of-the-image", "of the trial", True]
    assert engine.holds(prepared)
    return f"{prepared.facts['base_digest']} {prepared.reference}"


def test_a_local_tag_and_an_archive_run_in_docker(ground: Places, mine: Path, tmp_path: Path) -> None:
    digest = check(DockerEngine(ground), TAG, tmp_path / "tag")
    assert check(DockerEngine(ground), str(mine), tmp_path / "archive") == digest, "both are one image"
    with pytest.raises(SkipEnvironmentError, match="only a container"):
        LocalEngine(ground).prepare(Image("mine", ready=TAG), (), Said())


@pytest.mark.podman
def test_an_archive_runs_in_podman(ground: Places, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = os.environ.get("ENVMATRIX_TEST_PODMAN")
    demand(None if socket else "no Podman service: set ENVMATRIX_TEST_PODMAN to its socket")
    monkeypatch.setenv("DOCKER_HOST", str(socket))
    assert check(DockerEngine(ground), str(mine), tmp_path / "archive").startswith("sha256:")


@pytest.mark.apptainer
def test_a_local_tag_and_a_sif_run_in_apptainer(ground: Places, mine: Path, tmp_path: Path) -> None:
    engine = ApptainerEngine(ground)
    demand(engine.unavailable())
    digest, sif = check(engine, TAG, tmp_path / "tag").split()
    assert digest == check(DockerEngine(ground), TAG, tmp_path / "docker").split()[0]
    assert builders_folders(sif) == []
    real = Path(sif).resolve()
    assert check(engine, sif, tmp_path / "sif") == f"sha256:{file_digest(real)} {real}"
    with pytest.raises(SkipEnvironmentError, match="is a SIF file"):
        DockerEngine(ground).prepare(Image("mine", ready=sif), (), Said())

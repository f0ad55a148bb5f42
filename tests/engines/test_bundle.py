"""The Dockerfile from `export --bundle` builds unchanged on a machine without envmatrix."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_api import connect
from envmatrix.plan.environment import Image
from tests.engines.conftest import Said, demand

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
MATRIX = """
version: 2
factors:
  python: {mine: {interpreter: "PYTHON"}}
  malloc: {glibc: {}, jemalloc: {apt: libjemalloc2, preload: libjemalloc.so.2}}
  word: {none: {}, some: {env: {WORD: 'a "b" $c\\d'}}}
environments: {baseline: {}, both: {malloc: jemalloc, word: some}}
workloads: {w: {command: [python, -c, pass], metric: {wall: true}}}
designs: {default: {environments: [both], workloads: w}}
"""
SEEN = "import os; print('libjemalloc' in open('/proc/self/maps').read(), os.environ['WORD'], os.environ['LD_PRELOAD'])"


@pytest.fixture
def base(ground: BuildPaths):
    """Return the name of an image with a Python that needs no registry."""
    demand(DockerEngine(ground).unavailable())
    return DockerEngine(ground).prepare(Image("tiny", requirements=("tinypkg==1.0",)), (), Said())


def test_the_dockerfile_builds_in_its_folder_alone(base, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("PYTHON", sys.executable))
    assert main(["export", "both", "--as", "dockerfile"]) == 2
    assert "--bundle DIR" in capsys.readouterr().err
    assert main(["export", "both", "--as", "dockerfile", "--bundle", "bundle"]) == 0
    printed = capsys.readouterr().out
    moved = shutil.move(tmp_path / "bundle", tmp_path / "elsewhere")
    assert (moved / "Dockerfile").read_text() == printed
    assert str(tmp_path) not in printed
    client = connect()
    name = re.search(r"^ARG BASE=(\S+)$", printed, re.MULTILINE)[1]
    assert name == f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
    arguments = {"BASE": base.facts["image_id"].removeprefix("sha256:")}
    try:
        built, _ = client.images.build(path=str(moved), tag="envmatrix-test/bundle:1", rm=True, buildargs=arguments)
        start = {"entrypoint": base.python, "command": ["-c", SEEN]}
        said = client.containers.run(built.id, **start, remove=True, network_mode="none").decode()
    finally:
        client.images.remove("envmatrix-test/bundle:1", force=True)
        client.close()
    assert said == 'True a "b" $c\\d /opt/envmatrix/lib/malloc-jemalloc/libjemalloc.so.2\n'

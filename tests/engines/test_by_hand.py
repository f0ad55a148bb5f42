"""The generated definitions, built with the plain tools as their own first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.apptainer_command import lacks_privilege
from envmatrix.engines.docker import DockerEngine
from envmatrix.images.places import Places
from tests.engines.conftest import demand

pytestmark = pytest.mark.timeout(900)
MATRIX = """
version: 1
factors:
  torch: {tiny: {requirements: [tinypkg==1.0]}}
  malloc: {glibc: {}, jemalloc: {apt: libjemalloc2, preload: libjemalloc.so.2, env: {WORD: 'a "b" $c'}}}
environments: {baseline: {}, jemalloc: {malloc: jemalloc}}
workloads: {cnn: {model: fashion-cnn}}
designs: {default: {environments: jemalloc, workloads: cnn}}
"""
SEEN = "import os, tinypkg; print(tinypkg.VERSION, os.environ['WORD'], 'jemalloc' in open('/proc/self/maps').read())"
ANSWER = '1.0 a "b" $c True\n'


def said(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def folder(ground: Places, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a project whose definitions are written and whose build/context is filled."""
    folder = tmp_path_factory.mktemp("by-hand")
    (folder / "matrix.yaml").write_text(MATRIX)
    said(sys.executable, "-m", "envmatrix", "definitions", cwd=folder)
    said(sys.executable, "-m", "envmatrix", "context", "jemalloc", "--output", "build/context", cwd=folder)
    return folder


@pytest.mark.docker
def test_docker_build(folder: Path, ground: Places) -> None:
    demand(DockerEngine(ground).unavailable())
    loaded = said("docker", "load", "-i", "build/context-base.tar", cwd=folder)
    base = loaded.strip().rpartition("Loaded image: ")[2]
    tag = "envmatrix-test/by-hand"
    said(
        "docker", "build", "--network", "none", "-f", "containers/jemalloc.Dockerfile", "--build-arg", f"BASE={base}",
        "-t", tag, "build/context", cwd=folder,
    )  # fmt: skip
    try:
        assert said("docker", "run", "--rm", "--network", "none", tag, "python3", "-c", SEEN, cwd=folder) == ANSWER
    finally:
        said("docker", "rmi", "-f", tag, cwd=folder)


@pytest.mark.apptainer
def test_apptainer_build(folder: Path, ground: Places) -> None:
    demand(ApptainerEngine(ground).unavailable())
    prefix = ["unshare", "--user", "--map-root-user"] if lacks_privilege() else []
    said(
        *prefix, "apptainer", "build", "--build-arg", "BOOTSTRAP=docker-archive",
        "--build-arg", "FROM=build/context-base.tar", "containers/jemalloc.sif", "containers/jemalloc.def", cwd=folder,
    )  # fmt: skip
    userns = ["--userns"] if os.geteuid() == 0 else []
    sif = "containers/jemalloc.sif"
    assert said("apptainer", "exec", *userns, "--cleanenv", sif, "python3", "-c", SEEN, cwd=folder) == ANSWER

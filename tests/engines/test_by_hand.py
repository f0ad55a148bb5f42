"""Generated definitions: building them with plain tools, as their first lines explain, gives the same files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.build.images.file_listing import ENGINE_PATHS, listing_argv, listing_differences, store_listing
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.apptainer_command import is_unprivileged_root
from envmatrix.engines.docker import DockerEngine
from tests.engines.conftest import demand, labels_of, untagged

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
LISTED = listing_argv("/opt/envmatrix/venv/bin/python3", "/", ENGINE_PATHS)


def said(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def folder(ground: BuildPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose definitions and build/context have been written."""
    folder = tmp_path_factory.mktemp("by-hand")
    (folder / "matrix.yaml").write_text(MATRIX)
    said(sys.executable, "-m", "envmatrix", "definitions", cwd=folder)
    said(sys.executable, "-m", "envmatrix", "context", "jemalloc", "--output", "build/context", cwd=folder)
    for file in (folder / "build" / "context" / "bench").rglob("*"):  # as if written with another umask
        file.chmod(file.stat().st_mode | 0o020)
    return folder


def by_hand(folder: Path, file: str) -> str:
    """Return the build commands in a definition's first lines, without the first one, which makes the context."""
    lines = (folder / "containers" / file).read_text().partition("Build it by hand:\n")[2].splitlines()
    return "\n".join(line.removeprefix("#   ") for line in lines[1:] if line.startswith("#   "))


def check_same_files(ground: BuildPaths, by_hand: str, by_tool: str) -> None:
    """Compare an image built by hand with the one built by envmatrix, path by path: kind, mode and content."""
    assert by_hand.count("\n") > 5000
    first = store_listing(ground.cache, by_hand)
    assert listing_differences(ground.cache, first, by_tool) == []
    assert first == by_tool


def in_docker(tag: str, *argv: str) -> str:
    options = ("--rm", "--network", "none", "--entrypoint", argv[0])
    return said("docker", "run", *options, tag, *argv[1:], cwd=Path.cwd())


@pytest.mark.docker
def test_docker_build(folder: Path, ground: BuildPaths) -> None:
    demand(DockerEngine(ground).unavailable())
    tag = "envmatrix/jemalloc"
    said("sh", "-ec", by_hand(folder, "jemalloc.Dockerfile"), cwd=folder)
    try:
        assert in_docker(tag, "python3", "-c", SEEN) == ANSWER
        labels, files = labels_of(tag), in_docker(tag, *LISTED)
        said(sys.executable, "-m", "envmatrix", "build", "jemalloc", "--engine", "docker", cwd=folder)
        assert labels_of(tag) == labels
        check_same_files(ground, files, store_listing(ground.cache, in_docker(tag, *LISTED)))
        assert untagged("org.opencontainers.image.title=envmatrix/jemalloc") == []
    finally:
        said("docker", "rmi", "-f", tag, cwd=folder)
        said("docker", "image", "prune", "-f", "--filter", "label=org.envmatrix.stage=build", cwd=folder)


@pytest.mark.apptainer
def test_apptainer_build(folder: Path, ground: BuildPaths) -> None:
    demand(ApptainerEngine(ground).unavailable())
    head = (folder / "containers/jemalloc.def").read_text().partition("Bootstrap:")[0]
    told = head.partition("CAP_SYS_RESOURCE, as in most containers: ")[2].partition("apptainer")[0]
    prefix = told if is_unprivileged_root() else ""
    said("sh", "-ec", prefix + by_hand(folder, "jemalloc.def"), cwd=folder)
    userns = ["--userns"] if os.geteuid() == 0 else []
    sif = "containers/jemalloc.sif"
    assert said("apptainer", "exec", *userns, "--cleanenv", sif, "python3", "-c", SEEN, cwd=folder) == ANSWER
    listed = ("apptainer", "exec", *userns, "--containall", sif, *LISTED)
    labels, files = labels_of(str(folder / sif)), said(*listed, cwd=folder)
    assert labels["org.opencontainers.image.title"] == "envmatrix/jemalloc"
    said(sys.executable, "-m", "envmatrix", "build", "jemalloc", "--engine", "apptainer", cwd=folder)
    assert labels_of(str(folder / sif)) == labels
    check_same_files(ground, files, store_listing(ground.cache, said(*listed, cwd=folder)))

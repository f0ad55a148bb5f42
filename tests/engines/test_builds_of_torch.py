"""Locks whose index cannot be reached, with the real pip and small wheels; torchvision's operators in Docker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from envmatrix.build.cache import file_digest
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.build.python import torch_companion_packages
from envmatrix.build.python.interpreters import inspect_interpreter
from envmatrix.build.python.torch_companion_packages import strangers
from envmatrix.build.python.venvs import inspect_base_python
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.local import LocalEngine
from envmatrix.plan.environment import Image
from tests.engines.conftest import Said, demand, write_wheel

NOWHERE = "http://127.0.0.1:9/whl/cpu"
IMAGE = Image("torch-tiny", requirements=("torch==1.0", "torchvision==1.0"), index=(NOWHERE,))
#: Two boxes that overlap, and one apart from them.
PROGRAM = """
import torch
from torchvision.ops import nms
boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)
assert kept.tolist() == [0, 2], kept
print("boxes/s: 3")
"""
MATRIX = """
version: 2
factors:
  torch: {debian-2.6.0: {suite: trixie, apt: [python3-torch, python3-torchvision], env: {OMP_WAIT_POLICY: PASSIVE}}}
environments: {baseline: {}}
workloads:
  boxes: {command: [python, boxes.py], metric: {regex: 'boxes/s: ([0-9]+)', better: higher}}
designs: {default: {workloads: boxes, max_blocks: 1, budget: 10m}}
"""


def has(folder: Path, *wheels: str) -> None:
    """Write wheels (name==version) into a folder; each has its version as a module variable."""
    for wheel in wheels:
        name, version = wheel.split("==")
        write_wheel(folder, name, version, {f"{name}/__init__.py": f"VERSION = {version!r}\n".encode()})


def locked_elsewhere(places: BuildPaths, wheels: Path, said: Said) -> Path:
    """Return a lock that was made while the index was reachable."""
    has(wheels, "torch==1.0+cpu", "torchvision==1.0+cpu")
    return Locks(places.locks, places.cache, said).make([IMAGE], ())[0]


@pytest.mark.local
def test_a_lock_is_not_replaced_by_one_of_two_builds(places: BuildPaths, wheels: Path, said: Said) -> None:
    lock = locked_elsewhere(places, wheels, said)
    before = lock.read_text()
    assert "torchvision==1.0+cpu" in before
    (wheels / "torchvision-1.0+cpu-py3-none-any.whl").unlink()
    has(wheels, "torchvision==1.0")
    assert Locks(places.locks, places.cache, said).make([IMAGE], ()) == []
    assert lock.read_text() == before
    assert "its packages are from different builds of torch" in said[-1]


@pytest.mark.local
def test_a_lock_whose_wheels_lie_in_a_folder_is_used_though_its_index_is_gone(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    lock = locked_elsewhere(places, wheels, said)
    prepared = LocalEngine(places).prepare(IMAGE, (), said)
    assert prepared.facts["lock"] == lock.name
    assert prepared.facts["package torchvision"] == "1.0+cpu"


@pytest.mark.local
def test_where_only_another_build_can_be_had_it_is_taken_and_said(places: BuildPaths, wheels: Path, said: Said) -> None:
    lock = locked_elsewhere(places, wheels, said)
    (wheels / "torchvision-1.0+cpu-py3-none-any.whl").unlink()
    has(wheels, "torchvision==1.0")
    prepared = LocalEngine(places).prepare(IMAGE, (), said)
    assert prepared.facts["package torchvision"] == "1.0"
    assert prepared.facts["lock"] != lock.name
    text = "\n".join(said)
    assert f"cannot get torchvision==1.0+cpu of {lock.name}, because {NOWHERE} is unreachable" in text
    assert "torchvision==1.0 is compiled for another build of torch than torch 1.0+cpu" in text


@pytest.fixture
def index(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve two local indexes: PyPI's, with torchvision==1.0, and PyTorch's for the CPU, with 1.0+cpu."""
    for path, version in (("simple", "1.0"), ("whl/cpu", "1.0+cpu")):
        folder = tmp_path / "www" / path / "torchvision"
        folder.mkdir(parents=True)
        has(folder, f"torchvision=={version}")
        (wheel,) = folder.glob("*.whl")
        link = f"{quote(wheel.name)}#sha256={file_digest(wheel)}"
        (folder / "index.html").write_text(f"<!DOCTYPE html><a href='{link}'>{wheel.name}</a>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "www"))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
        monkeypatch.setattr(torch_companion_packages, "PYTORCH_INDEX", f"{address}/whl/")
        yield address
        server.shutdown()
        thread.join()


@pytest.mark.local
def test_torchvision_over_a_python_with_a_torch_for_the_cpu_is_the_one_for_the_cpu(
    places: BuildPaths, index: str, said: Said, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    site = next((tmp_path / "own").glob("lib/python3*/site-packages"))
    (site / "torch-1.0+cpu.dist-info").mkdir()
    (site / "torch-1.0+cpu.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0+cpu\n")
    python = inspect_interpreter(str(tmp_path / "own/bin/python"))
    assert python is not None
    image = Image("mine", requirements=("torchvision",), interpreter=python.path)
    section = Locks(places.locks, places.cache, said).overlay_lock(image, python, inspect_base_python(python))
    assert [str(pin) for pin in section.packages] == ["torchvision==1.0+cpu"]


@pytest.mark.local
def test_a_program_of_torchvisions_operators_runs_in_the_built_in_venv(tmp_path: Path) -> None:
    site = Path(os.environ.get("BENCH_SITE_PACKAGES", "/nowhere"))
    there = [file.name.removesuffix(".dist-info").split("-") for file in site.glob("torch*-*.dist-info")]
    pins = [PinnedPackage(name, version, "") for name, version in there]
    if "torchvision" not in {pin.name for pin in pins} or strangers(pins):
        pytest.skip("no torchvision of this torch's build can be had here, which is said when it is locked")
    done = subprocess.run([os.environ["BENCH_PYTHON"], "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "boxes/s: 3\n", done.stderr


@pytest.mark.skipif("ENVMATRIX_TEST_TORCHVISION" not in os.environ, reason="an image of 1.4 GB for this alone")
@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_a_program_of_torchvisions_operators_runs_in_an_image(ground: BuildPaths, tmp_path: Path) -> None:
    demand(DockerEngine(ground).unavailable())
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    (tmp_path / "boxes.py").write_text(PROGRAM)
    argv = [sys.executable, "-m", "envmatrix", "bench", "--engine", "docker", "--name", "boxes", "--quiet"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in (tmp_path / "results/boxes/trials.jsonl").read_text().splitlines()]
    assert [trial["outcome"] for trial in trials] == ["ok", "ok"], [trial["reason"] for trial in trials]

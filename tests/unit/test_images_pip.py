"""Messages about pip's failures: each by its cause, with the real pip and wheels of a few bytes."""

import os
import re
import shutil
import sys

import pytest

from envmatrix.build.cache import Cache
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.python import interpreters, source_builds, wheelhouse
from envmatrix.build.python.pip import Pip, ResolveRequest
from envmatrix.errors import EngineError, EnvmatrixError
from tests.engines.conftest import write_wheel

PIP = Pip((sys.executable, "-m", "pip"))


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        write_wheel(folder, "basepkg", version, {"basepkg.py": b""})
    write_wheel(folder, "oldpkg", "1.0", {"oldpkg.py": b""}, needs="basepkg<2")
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


def failure(requirements, scratch):
    with pytest.raises(EngineError) as refused:
        PIP.resolve(ResolveRequest(tuple(requirements)), scratch)
    return refused.value.message, refused.value.remedy


@pytest.mark.parametrize(
    ("requirements", "said", "do"),
    [
        (["oldpkg", "basepkg==2.0"], "conflicting dependencies", "contradict one another"),
        (["basepkg==1.0", "basepkg==2.0"], "conflicting dependencies", "contradict one another"),
        (["basepkg==3.0"], "No matching distribution found", "check the name and the version"),
        (["nosuch-package"], "No matching distribution found", "check the name and the version"),
        (["basepkg=1"], "Invalid requirement", "write it as pip does"),
    ],
)
def test_what_is_wrong_with_the_requirements_is_not_told_as_the_networks_fault(
    tmp_path, wheels, requirements, said, do
):
    message, remedy = failure(requirements, tmp_path)
    assert said in message
    assert do in remedy
    assert "network" not in remedy


def test_an_index_that_does_not_answer_is_the_networks_fault(tmp_path, wheels, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "1", "TIMEOUT": "2"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    _, remedy = failure(["nosuch-package"], tmp_path)
    assert "check the network" in remedy


def test_a_missing_uv_is_told_before_anything_is_downloaded(tmp_path, wheels, monkeypatch):
    cache = Cache(tmp_path / "cache")
    monkeypatch.setattr(interpreters.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvmatrixError, match="uv is not installed") as refused:
        source_builds.check_uv(cache, [PinnedPackage("torch", "2.13.0", "0" * 64)])
    assert "python -m pip install uv" in (refused.value.remedy or "")
    source_builds.check_uv(cache, [])


@pytest.mark.parametrize(("names", "said"), [(("torch", "nvidia-cublas"), True), (("torch", "numpy"), False)])
def test_what_a_cuda_build_takes_is_said_with_the_space_that_is_free(tmp_path, names, said):
    note = wheelhouse.cuda_size_note([PinnedPackage(name, "1.0", "0" * 64) for name in names], tmp_path)
    pattern = r" \(a CUDA build: about 4 GB, .* 25 GB of disk .*; \d+ GB are free\)"
    assert bool(re.fullmatch(pattern, note)) is bool(note) is said

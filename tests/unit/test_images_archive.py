"""A base's tar, its digest, and the archive from which Apptainer builds."""

import hashlib
import json
import tarfile

import pytest

from envmatrix.build.debian.suites import base_digest
from envmatrix.build.images.context import write_docker_archive


@pytest.mark.parametrize(("machine", "named"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")])
def test_the_archive_names_the_machine_it_was_made_on(tmp_path, monkeypatch, machine, named):
    monkeypatch.setattr("platform.machine", lambda: machine)
    with tarfile.open(tmp_path / "base.tar", "w"):
        pass
    write_docker_archive(tmp_path / "base.tar", tmp_path / "image.tar", "base:1")
    with tarfile.open(tmp_path / "image.tar") as archive:
        config = json.loads(archive.extractfile("config.json").read())
    assert (config["architecture"], config["os"]) == (named, "linux")


def test_a_digest_that_a_crash_left_half_written_is_made_again(tmp_path):
    (tmp_path / "base.tar").write_bytes(b"base")
    whole = "sha256:" + hashlib.sha256(b"base").hexdigest()
    assert base_digest(tmp_path / "base.tar") == whole
    (tmp_path / "sha256").write_text("")
    assert base_digest(tmp_path / "base.tar") == whole

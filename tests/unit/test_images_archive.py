"""The archive of a base's tar, from which Apptainer builds."""

import json
import tarfile

import pytest

from envmatrix.build.images.context import write_one_layer_archive


@pytest.mark.parametrize(("machine", "named"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")])
def test_the_archive_names_the_machine_it_was_made_on(tmp_path, monkeypatch, machine, named):
    monkeypatch.setattr("platform.machine", lambda: machine)
    with tarfile.open(tmp_path / "base.tar", "w"):
        pass
    write_one_layer_archive(tmp_path / "base.tar", tmp_path / "image.tar", "base:1")
    with tarfile.open(tmp_path / "image.tar") as archive:
        config = json.loads(archive.extractfile("config.json").read())
    assert (config["architecture"], config["os"]) == (named, "linux")

"""Images from a pack are started unchanged; no other file is accepted as one."""

import json
import shutil
from pathlib import Path

import pytest

from envmatrix.build.debian.minimal_base import SOURCE_DATE_EPOCH
from envmatrix.engines.base import Prepared
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import InputError, StoreError
from envmatrix.results import RunFolder
from envmatrix.runner.reproduction.pack_archive import Manifest, make_entry, unpack, write_archive
from envmatrix.runner.reproduction.pack_contents import image_contents, load_packed_images
from envmatrix.trials.images import load_supplied_images, prepare_images, save_supplied_images

KEY = ("torch-2.13.0", "apptainer")


@pytest.fixture
def prepared(tmp_path):
    sif = tmp_path / "image.sif"
    sif.write_bytes(b"SIF" * 1000)
    return Prepared(*KEY, str(sif), "/opt/venv/bin/python", {"openmp-intel": "/opt/libraries/a"}, {"lock": "x"},
                    {"malloc-x": "not here"}, frozenset({"libc.so.6", "libomp.so"}))  # fmt: skip


def packed(tmp_path, prepared, change=lambda contents: None):
    contents = image_contents({KEY[1]: find_engine(KEY[1])}, {KEY: prepared})
    change(contents)
    name = next(name for name in contents if name.endswith(".sif"))
    files = {name: make_entry(content) for name, content in contents.items()}
    images = {"@".join(KEY): {"sha256": files[name].sha256, "file": name}}
    manifest = Manifest("r", "2026-01-01", "0.1", files, images)
    write_archive(tmp_path / "a.tar.gz", manifest, contents, None)
    found, *_ = unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    return found


def test_an_image_comes_out_as_it_went_in(tmp_path, prepared):
    given = load_packed_images(packed(tmp_path, prepared), tmp_path / "out")[KEY]
    assert Path(given.reference).read_bytes() == Path(prepared.reference).read_bytes()
    assert Path(given.reference).is_relative_to(tmp_path / "out")
    for name in ("image", "engine", "python", "libraries", "facts", "missing", "loader"):
        assert getattr(given, name) == getattr(prepared, name)


def test_an_image_that_is_unpacked_again_is_the_one_that_a_run_began_with(tmp_path, prepared):
    given = load_packed_images(packed(tmp_path, prepared), tmp_path / "out")
    folder = RunFolder(tmp_path)
    save_supplied_images(folder, given)
    file = Path(given[KEY].reference)
    assert file.stat().st_mtime == int(SOURCE_DATE_EPOCH)  # independent of the time of unpacking
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    packed(tmp_path, prepared)
    assert load_supplied_images(folder) == given
    file.write_bytes(b"another")
    with pytest.raises(InputError, match="was replaced by another file"):
        load_supplied_images(folder)


@pytest.mark.parametrize("change", [{"reference": "/etc/passwd"}, {"engine": "local"}, {"image": "other"}, {"new": 1}])
def test_a_description_of_something_else_is_refused(tmp_path, prepared, change):
    def forge(contents):
        name = next(name for name in contents if name.endswith(".json"))
        contents[name] = json.dumps({**json.loads(contents[name]), **change}).encode()

    manifest = packed(tmp_path, prepared, forge)
    with pytest.raises(StoreError, match="has no start command"):
        load_packed_images(manifest, tmp_path / "out")


@pytest.mark.parametrize("body", ["words", 1, [], None])
def test_a_description_that_is_no_object_is_refused(tmp_path, prepared, body):
    def forge(contents):
        contents[next(name for name in contents if name.endswith(".json"))] = json.dumps(body).encode()

    with pytest.raises(StoreError, match="has no start command"):
        load_packed_images(packed(tmp_path, prepared, forge), tmp_path / "out")


def test_a_pack_without_image_files_gives_none(tmp_path):
    assert load_packed_images(Manifest("r", "", "", {}, {"@".join(KEY): {"sha256": "0"}}), tmp_path) == {}


def test_a_given_image_is_not_built_and_a_resumed_run_finds_it_again(tmp_path, prepared):
    folder = RunFolder(tmp_path)
    assert load_supplied_images(folder) == {}
    save_supplied_images(folder, {KEY: prepared})
    assert load_supplied_images(folder) == {KEY: prepared}
    ready, missing = prepare_images({}, {}, print, load_supplied_images(folder))
    assert (ready, missing) == ({KEY: prepared}, {})
    Path(prepared.reference).unlink()
    with pytest.raises(InputError, match="is gone"):
        load_supplied_images(folder)

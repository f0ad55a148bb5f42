"""A bundle contains copies of preloaded libraries, and changes no folder of the user."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.api.environment_exec_and_export import copy_preloaded_libraries
from envmatrix.engines.base import Prepared
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import InputError
from envmatrix.plan.environment import Environment, Image
from envmatrix.plan.export_lines import BUNDLE_FOLDER, dockerfile
from envmatrix.trials.environment_for_commands import Session

ENVIRONMENT = Environment("e", "", {}, Image("i"), {}, (("malloc-x", "libx.so.1"), ("", "libm.so.6")), ())


@pytest.fixture
def session(tmp_path):
    folder = tmp_path / "cache" / "malloc-x"
    folder.mkdir(parents=True)
    (folder / "libx.so.1.0").write_text("x")
    (folder / "libx.so.1").symlink_to("libx.so.1.0")
    prepared = Prepared("i", "local", "/venv", "/venv/bin/python", {"malloc-x": str(folder)})
    return Session(ENVIRONMENT, find_engine("local"), prepared, Path("/bench"))


def test_it_holds_files_and_no_links_and_is_replaced_by_the_next(session, tmp_path):
    bundle = tmp_path / "new" / "bundle"
    file = bundle / "lib" / "malloc-x" / "libx.so.1"
    assert copy_preloaded_libraries(bundle, session) == (str(file), "libm.so.6")
    assert (file.read_text(), file.is_symlink()) == ("x", False)
    (bundle / "train.py").write_text("mine")
    (bundle / "lib" / "old").mkdir()
    copy_preloaded_libraries(bundle, session)
    assert sorted(path.name for path in bundle.iterdir()) == ["envmatrix-bundle.json", "lib", "train.py"]
    assert [path.name for path in (bundle / "lib").iterdir()] == ["malloc-x"]
    in_image = copy_preloaded_libraries(bundle, session, for_image=True)
    assert in_image == (f"{BUNDLE_FOLDER}/lib/malloc-x/libx.so.1", "libm.so.6")
    made = dockerfile(ENVIRONMENT, in_image[:1], "debian", "lib/").splitlines()
    assert made[2:] == [
        "ARG BASE=debian", "FROM ${BASE}", 'COPY ["lib/", "/opt/envmatrix/lib/"]',
        'ENV LD_PRELOAD="/opt/envmatrix/lib/malloc-x/libx.so.1"',
    ]  # fmt: skip
    built = dockerfile(ENVIRONMENT, in_image[:1], "an-image-that-has-them")
    assert "COPY" not in built


@pytest.mark.parametrize("there", ["a folder with files", "a file", "a space", "a colon"])
def test_what_is_no_bundle_is_left_as_it_is(session, tmp_path, there):
    bundle = tmp_path / {"a space": "a b", "a colon": "a:b"}.get(there, "bundle")
    if there == "a folder with files":
        (bundle / "lib").mkdir(parents=True)
        (bundle / "lib" / "mine.txt").write_text("mine")
    elif there == "a file":
        bundle.write_text("mine")
    with pytest.raises(InputError, match="--bundle") as caught:
        copy_preloaded_libraries(bundle, session)
    assert caught.value.remedy
    if there == "a folder with files":
        assert [path.name for path in bundle.rglob("*")] == ["lib", "mine.txt"]


def test_libraries_in_an_image_are_not_copied_and_mounted_ones_are(session, tmp_path):
    engine = SimpleNamespace(name="docker", shares_files=False)
    inside = Prepared("i", "docker", "sha256:1", "/usr/bin/python3", {"malloc-x": "/opt/x"})
    with pytest.raises(InputError, match="are inside the image of engine docker"):
        copy_preloaded_libraries(tmp_path / "bundle", Session(ENVIRONMENT, engine, inside, Path("/bench")))
    assert not (tmp_path / "bundle").exists()
    mounted = Prepared("i", "docker", "sha256:1", "/usr/bin/python3", {"malloc-x": "/opt/x"},
                       mounted={"/opt/x": session.prepared.libraries["malloc-x"]})  # fmt: skip
    made = copy_preloaded_libraries(tmp_path / "bundle", Session(ENVIRONMENT, engine, mounted, Path("/bench")))
    assert made == (str(tmp_path / "bundle/lib/malloc-x/libx.so.1"), "libm.so.6")

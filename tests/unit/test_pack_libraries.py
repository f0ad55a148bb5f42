"""Preloaded libraries in a pack: where it is unpacked, their folders are built without a network."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.build.cache import Cache, json_digest
from envmatrix.build.images.definitions import LIBRARIES
from envmatrix.build.libraries import LibraryBuilder
from envmatrix.build.lockfile import Lock, PinnedPackage, Section, parse_lock
from envmatrix.build.package_locks import Locks
from envmatrix.build.python import wheelhouse
from envmatrix.build.python.interpreters import find_python_cached
from envmatrix.build.python.wheelhouse import Wheelhouse
from envmatrix.engines.base import Prepared
from envmatrix.errors import InputError
from envmatrix.plan.environment import Image, Library
from envmatrix.runner.reproduction.pack_contents import add_pack_to_wheelhouse, library_contents, mount_libraries
from envmatrix.system.progress import silent
from tests.synthetic import make_environment

TOY = Library("toy", ("toy==1.0",), files=("libtoy.so.1",))
UNUSED = Library("unused", ("unused==1.0",), files=("libunused.so",))
RUN = SimpleNamespace(
    environments={"a": make_environment("a", preload=(("toy", "libtoy.so.1"), ("", "libc.so.6")))},
    libraries=(TOY, UNUSED),
)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return the locks of a machine that has the wheel of a library, and the wheel."""
    monkeypatch.setattr(wheelhouse, "cached_pip", lambda *_: pytest.fail("the network was asked"))
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/libtoy.so.1", b"\x7fELF toy")
    pin = PinnedPackage("toy", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest())
    locks = Locks(tmp_path / "locks", Cache(tmp_path / "cache"))
    locks.folder.mkdir()
    file = locks.library_wheels_file(find_python_cached(locks.cache, None))
    file.write_text(Lock(file, (Section("library", "toy", "toy==1.0", (pin,)),)).text())
    content = wheel.read_bytes()
    Wheelhouse(locks.cache).add(wheel, pin)
    return locks, pin, content


def unpacked(contents, folder):
    for name, file in contents.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(file if isinstance(file, bytes) else file.read_bytes())
    return folder


def test_a_machine_without_a_network_has_the_library_after_reproduce(made, tmp_path):
    locks, pin, content = made
    contents, left_out = library_contents(RUN, locks, silent)
    assert list(contents) == [f"libraries/{pin.sha256}/toy-1.0-py3-none-any.whl"], "only what is preloaded"
    assert left_out == []
    pack = unpacked(contents, tmp_path / "pack")
    there = Cache(tmp_path / "there")
    for _ in range(2):
        add_pack_to_wheelhouse(pack, Wheelhouse(there))
    (file,) = pack.rglob("*.whl")
    assert file.read_bytes() == content, "the pack stays whole"
    builder = LibraryBuilder(Locks(locks.folder, there), find_python_cached(there, None))
    folders = builder.build([TOY], Image("torch"))
    assert (folders.missing, set(folders.folders)) == ({}, {"toy"})


def test_a_package_that_is_not_what_its_name_says_is_refused(made, tmp_path):
    locks, _, _ = made
    pack = unpacked(library_contents(RUN, locks, silent)[0], tmp_path / "pack")
    (file,) = pack.rglob("*.whl")
    file.write_bytes(b"other")
    house = Wheelhouse(Cache(tmp_path / "there"))
    with pytest.raises(InputError, match="does not match the lock"):
        add_pack_to_wheelhouse(pack, house)
    assert not list((tmp_path / "there").rglob("*.whl"))


def test_a_library_that_this_machine_took_from_elsewhere_is_named(made, tmp_path):
    locks, _, _ = made
    empty = Locks(locks.folder, Cache(tmp_path / "empty"))
    contents, left_out = library_contents(RUN, empty, silent)
    assert (contents, left_out) == ({}, ["library toy is not packed: this machine uses a copy that no lock pins"])


def test_a_lock_that_was_made_in_the_cache_is_packed_with_the_projects_own(made, tmp_path):
    locks, pin, _ = made
    python = find_python_cached(locks.cache, None)
    committed = locks.library_wheels_file(python)
    digest = json_digest("library", "toy", "toy==1.0")[:12]
    cached = locks.cache.root / "locks" / f"{committed.stem}.{digest}.txt"
    cached.parent.mkdir(parents=True)
    committed.rename(cached)
    other = Section("library", "other", "other==1.0", (PinnedPackage("other", "1.0", "0" * 64),))
    committed.write_text(Lock(committed, (other, Section("library", "toy", "toy==0.9", (pin,)))).text())
    contents, _ = library_contents(RUN, locks, silent)
    lock = parse_lock(contents[f"containers/locks/{committed.name}"].decode(), committed)
    assert [(one.name, one.asked) for one in lock.sections] == [("other", "other==1.0"), ("toy", "toy==1.0")]
    there = Locks(unpacked(contents, tmp_path / "pack") / "containers" / "locks", Cache(tmp_path / "there"))
    add_pack_to_wheelhouse(tmp_path / "pack", Wheelhouse(there.cache))
    assert not LibraryBuilder(there, python).build([TOY], Image("torch")).missing


def test_a_packed_image_gets_the_libraries_that_were_mounted_into_it_from_this_machine(made, tmp_path):
    locks, _, _ = made
    inside = {key: f"{LIBRARIES}/{key}" for key in ("toy", "unused")}
    mounted = {inside["toy"]: "/gone/toy", inside["unused"]: "/gone/unused"}
    prepared = Prepared("image-mine", "apptainer", "/x.sif", "/usr/bin/python3", inside, mounted=mounted)
    found = mount_libraries(prepared, (TOY, UNUSED), locks)
    assert dict(found.libraries) == {"toy": inside["toy"]}
    assert (Path(found.mounted[inside["toy"]]) / "libtoy.so.1").exists()
    assert set(found.mounted) == {inside["toy"]}
    assert set(found.missing) == {"unused"}
    assert mount_libraries(replace(prepared, mounted={}), (TOY,), locks).libraries == inside

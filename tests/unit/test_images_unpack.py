"""Archives that try to escape their folder do not."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from envmatrix.build.shared_library_extraction import extract_libraries_of_wheel, unpack_libraries
from envmatrix.errors import EngineError


def tar_of(path: Path, members: list[tuple[str, bytes | None, str]]) -> Path:
    """Write a tar of (name, content, link target); content None makes a symbolic link."""
    with tarfile.open(path, "w") as archive:
        for name, content, target in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, target
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_members_of_a_package_land_flat_whatever_path_they_name(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    tar = tar_of(
        tmp_path / "t.tar",
        [("../../escaped.so", b"1", ""), ("/etc/absolute.so.1", b"2", ""), ("./usr/lib/x/libx.so.2.1", b"3", "")],
    )
    assert unpack_libraries(tar, place) == ["absolute.so.1", "escaped.so", "libx.so.2.1"]
    assert names(tmp_path) == {"place", "t.tar"}
    assert (place / "libx.so.2.1").read_bytes() == b"3"


def test_links_lead_only_to_files_of_the_same_folder(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    tar = tar_of(
        tmp_path / "t.tar",
        [
            ("usr/lib/libx.so", None, "libx.so.2"),
            ("usr/lib/libx.so.2", None, "../llvm/libx.so.2.1"),
            ("usr/llvm/libx.so.2.1", b"bits", ""),
            ("usr/lib/libself.so", None, "../other/libself.so"),
            ("usr/lib/libshadow.so", None, "/etc/shadow"),
            ("usr/lib/libloop.so", None, "libloop.so.1"),
            ("usr/lib/libloop.so.1", None, "libloop.so"),
        ],
    )
    unpack_libraries(tar, place)
    assert names(place) == {"libx.so", "libx.so.2", "libx.so.2.1"}
    for name in ("libx.so", "libx.so.2"):
        assert (place / name).resolve() == place / "libx.so.2.1"


def test_only_wanted_regular_members_of_a_wheel_are_written(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    link = zipfile.ZipInfo("x/liblink.so")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr("../../../libup.so", b"up")
        archive.writestr("p.data/data/lib/libiomp5.so", b"bits")
        archive.writestr("p.data/data/lib/libhuge.so", b"unwanted")
        archive.writestr("p/__init__.py", b"import os")
        archive.writestr(link, b"/etc/shadow")
    said = extract_libraries_of_wheel(tmp_path / "w.whl", place, ("libiomp5.so", "libup.so", "liblink.so"))
    assert names(place) == {"libiomp5.so", "libup.so"}
    assert names(tmp_path) == {"place", "w.whl"}
    assert said == ["libhuge.so", "libiomp5.so", "libup.so"]


def test_a_wanted_library_brings_the_parts_that_it_loads_itself(tmp_path: Path) -> None:
    names = ["libcudnn.so.9", "libcudnn_ops.so.9", "libcudnn_ops.so.8", "libiomp5.so", "libiomp5_db.so"]
    with zipfile.ZipFile(tmp_path / "it.whl", "w") as archive:
        for name in names:
            archive.writestr(f"nvidia/lib/{name}", b"ELF")
    for wanted, written in (("libcudnn.so.9", names[:2]), ("libiomp5.so", ["libiomp5.so"])):
        (tmp_path / wanted).mkdir()
        assert extract_libraries_of_wheel(tmp_path / "it.whl", tmp_path / wanted, [wanted]) == sorted(names)
        assert sorted(file.name for file in (tmp_path / wanted).iterdir()) == written


def test_a_damaged_archive_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "w.whl").write_bytes(b"<html>captive portal</html>")
    with pytest.raises(EngineError, match="is not a valid wheel"):
        extract_libraries_of_wheel(tmp_path / "w.whl", tmp_path, ())
    with pytest.raises(EngineError, match="is not a valid tar"):
        unpack_libraries(tmp_path / "w.whl", tmp_path)

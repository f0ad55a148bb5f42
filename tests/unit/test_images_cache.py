from __future__ import annotations

import os
from pathlib import Path

import pytest

from envmatrix.errors import EngineError
from envmatrix.images.cache import Cache, digest_of


def test_a_folder_is_whole_or_absent(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def breaks(place: Path) -> None:
        (place / "half").write_text("x")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        cache.folder(tmp_path / "a" / "b", breaks)
    assert list((tmp_path / "a").iterdir()) == []
    assert cache.folder(tmp_path / "a" / "b", lambda place: (place / "whole").touch())
    assert not cache.folder(tmp_path / "a" / "b", breaks)


def test_what_a_killed_builder_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".b.leftover"
    (left / "read-only").mkdir(parents=True)
    (left / "read-only").chmod(0o500)
    Cache(tmp_path).folder(tmp_path / "b", lambda place: None)
    assert not left.exists()
    assert (tmp_path / "b").is_dir()


def test_a_damaged_stamp_counts_as_none(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for text in ("", "{", "[1]", "\x00"):
        (tmp_path / "stamp").write_text(text)
        assert cache.read_json(tmp_path / "stamp") is None
    cache.write(tmp_path / "stamp", '{"a": 1}')
    assert cache.read_json(tmp_path / "stamp") == {"a": 1}


def test_a_cache_that_is_a_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError) as refused:
        Cache(tmp_path / "file").write(tmp_path / "file" / "x", "y")
    assert "ENVMATRIX_CACHE" in refused.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_cache_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(EngineError) as refused:
        Cache(tmp_path / "new").folder(tmp_path / "new" / "x", lambda place: None)
    assert "ENVMATRIX_CACHE" in refused.value.remedy


def test_a_digest_depends_on_order_and_on_nothing_else() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of(["a", "b"]) != digest_of(["b", "a"])

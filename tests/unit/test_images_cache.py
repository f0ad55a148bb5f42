from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.build.cache import MEMORY_FOLDER, Cache, json_digest
from envmatrix.errors import EngineError


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


def test_a_builder_leaves_what_another_cache_builds_at_the_same_place_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "ours" / "bases").mkdir(parents=True)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "bases").symlink_to(tmp_path / "ours" / "bases")

    def build(place: Path) -> None:
        theirs = Cache(tmp_path / "theirs")
        assert theirs.folder(theirs.root / "bases" / "b", lambda other: (other / "whole").touch())
        (place / "whole").touch()

    assert not Cache(tmp_path / "ours").folder(tmp_path / "ours" / "bases" / "b", build), "the other was first"
    assert [path.name for path in (tmp_path / "ours" / "bases").rglob("*")] == ["b", "whole"]


def test_a_file_that_cannot_be_written_to_its_end_leaves_the_old_one(tmp_path: Path) -> None:
    Cache(tmp_path).write(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        Cache(tmp_path).write(tmp_path / "file", "new \ud800")
    assert (tmp_path / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


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
    assert json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1})
    assert json_digest(["a", "b"]) != json_digest(["b", "a"])


def test_files_that_fit_are_made_in_memory_and_others_in_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with cache.quick_scratch("a", 1) as small, cache.quick_scratch("a", 2**60) as large:
        assert small.is_relative_to(MEMORY_FOLDER)
        assert large.is_relative_to(tmp_path)
        (small / "file").touch()
    assert not small.exists()
    assert not large.exists()


def test_files_are_made_in_memory_only_within_the_limits_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envmatrix.build.cache.free_memory", lambda: 2**20)
    with Cache(tmp_path).quick_scratch("a", 2**20) as folder:
        assert folder.is_relative_to(tmp_path)


@pytest.mark.parametrize("room", [1, 2**60])
def test_the_scratch_of_a_killed_builder_is_removed_and_that_of_a_living_one_is_kept(tmp_path: Path, room: int) -> None:
    code = (
        "import os, sys; from pathlib import Path; from envmatrix.build.cache import Cache\n"
        "with Cache(Path(sys.argv[1])).quick_scratch('a', int(sys.argv[2])) as path:\n"
        "    print(path, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(room)], capture_output=True, text=True)
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    with Cache(tmp_path).quick_scratch("a", room) as first:
        assert not left.exists()
        with Cache(tmp_path).quick_scratch("a", room):
            assert first.is_dir()


def test_a_folder_that_could_not_be_copied_for_lack_of_space_says_so_once(tmp_path: Path) -> None:
    def copy(place: Path) -> None:
        reason = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}: 'x'"
        raise shutil.Error([("a", "b", reason), ("c", "d", reason)])  # of copytree

    with pytest.raises(EngineError, match="no space left on device\n  -> free some space there") as told:
        Cache(tmp_path).folder(tmp_path / "copy" / "x", copy)
    assert str(told.value).count("space left") == 1

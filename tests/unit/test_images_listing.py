import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from envmatrix.build.cache import Cache, file_digest, file_stamp, has_stamp
from envmatrix.build.images.context import write_folders_tar
from envmatrix.build.images.file_listing import listing_argv, listing_differences, listing_file, store_listing
from envmatrix.engines.base import Prepared
from envmatrix.errors import InputError
from envmatrix.trials.images import check_images_unchanged


def listed(folder, *left_out):
    argv = listing_argv(sys.executable, str(folder), left_out)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def fill(folder, names, umask=0o022):
    before = os.umask(umask)
    try:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        (folder / "link").symlink_to(names[0])
    finally:
        os.umask(before)
    return folder


ONE, OTHER = ["b/x.py", "a", "ä b\nc"], ["ä b\nc", "a", "b/x.py"]


def test_a_listing_knows_neither_times_nor_the_order_in_which_files_were_written(tmp_path):
    first = fill(tmp_path / "1", ONE)
    second = fill(tmp_path / "2", OTHER)
    (second / "link").unlink()
    (second / "link").symlink_to(ONE[0])
    os.utime(second / "a", (1, 1))
    assert listed(first) == listed(second)
    assert [line.split(" ", 3)[3] for line in listed(first).splitlines()] == [
        "/", "/a", "/b", "/b/x.py", "/link", r"/\u00e4 b\nc",
    ]  # fmt: skip


def test_what_is_left_out_is_left_out_with_all_that_is_in_it(tmp_path):
    assert "/b" not in listed(fill(tmp_path / "1", ONE), f"{tmp_path}/1/b")


def test_differences_name_each_path_and_what_became_of_it(tmp_path):
    cache = Cache(tmp_path / "cache")
    first, second = fill(tmp_path / "1", ["a", "b", "c", "d"]), fill(tmp_path / "2", ["a", "c", "d", "e"])
    (second / "a").write_text("changed")
    (second / "c").chmod(0o600)
    then, now = (store_listing(cache, listed(folder)) for folder in (first, second))
    assert listing_differences(cache, then, now) == [
        "/a is another", "/b is gone", "/c is another", "/e is new",
    ]  # fmt: skip
    (second / "c").chmod(0o755)
    assert "/c has different permissions" in listing_differences(cache, then, store_listing(cache, listed(second)))
    assert listing_differences(cache, then, then) == []
    assert listing_differences(cache, "sha256:unknown", now) == []


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    return Cache(tmp_path / "cache")


def test_other_files_are_refused_with_their_paths_or_their_digests(tmp_path, cache):
    then, now = (store_listing(cache, listed(fill(tmp_path / name, [*name * 9]))) for name in "ab")
    run = SimpleNamespace(images={"image@docker": {"files_digest": then, "image_id": "1"}})
    same = Prepared("image", "docker", "ref", "python", {}, {"files_digest": then, "image_id": "2"})
    other = Prepared("image", "docker", "ref", "python", {}, {"files_digest": now, "image_id": "2"})
    check_images_unchanged(run, {("image", "docker"): same})
    with pytest.raises(InputError, match="3 of its files differ: /a is gone, /b is new, /link is another"):
        check_images_unchanged(run, {("image", "docker"): other})
    listing_file(cache, then).unlink()
    with pytest.raises(InputError, match=f"the digest of its files was {then}, and is now {now}"):
        check_images_unchanged(run, {("image", "docker"): other})


def test_another_base_is_refused_with_what_makes_the_right_one(cache):
    run = SimpleNamespace(images={"image@docker": {"base_digest": "sha256:1"}})
    other = Prepared("image", "docker", "ref", "python", {}, {"base_digest": "sha256:2"})
    with pytest.raises(InputError, match="base_digest was sha256:1, and is now sha256:2") as refused:
        check_images_unchanged(run, {("image", "docker"): other})
    assert "check out the envmatrix that started it" in refused.value.remedy


def test_a_file_is_known_again_by_its_stamp_and_one_that_was_written_into_is_another(tmp_path):
    file = tmp_path / "image.sif"
    file.write_bytes(b"one")
    stamp = file_stamp(file)
    copied = tmp_path / "copy.sif"
    shutil.copy2(file, copied)
    assert has_stamp(file, stamp)
    assert has_stamp(copied, stamp)
    os.utime(file, (1, 1))
    assert not has_stamp(file, stamp)
    copied.write_bytes(b"more")
    assert not has_stamp(copied, stamp)
    assert has_stamp(copied, "")
    assert not has_stamp(tmp_path / "none", "")


def test_folders_of_libraries_make_one_tar_whenever_and_under_whatever_umask(tmp_path):
    made = []
    for umask in (0o022, 0o002):
        folder = fill(tmp_path / f"{umask}", ["libx.so.1", "liby.so"], umask)
        write_folders_tar({"openmp": str(folder)}, tmp_path / f"{umask}.tar")
        made.append(file_digest(tmp_path / f"{umask}.tar"))
    assert made[0] == made[1]

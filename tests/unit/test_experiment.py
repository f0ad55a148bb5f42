"""What a run begins with."""

import shutil

import pytest

from envmatrix import project
from envmatrix.errors import InputError
from envmatrix.experiment import snapshot_bench


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "a.py").write_text("one")
    return tmp_path / "bench"


def test_an_edit_during_a_run_changes_nothing_in_its_copy_of_the_benchmark(source):
    digest, copy = snapshot_bench(source)
    (source / "a.py").write_text("two")
    assert (copy / "a.py").read_text() == "one"
    assert digest == project.bench_digest(copy) != snapshot_bench(source)[0]


def test_a_copy_is_whole_and_of_that_digest_or_absent(source, monkeypatch):
    def edited_meanwhile(here, there, **more):
        (source / "a.py").write_text("two")
        return whole(here, there, **more)

    whole = shutil.copytree
    monkeypatch.setattr(shutil, "copytree", edited_meanwhile)
    with pytest.raises(InputError, match="was changed while it was copied"):
        snapshot_bench(source)
    assert list((project.cache_folder() / "bench").iterdir()) == []

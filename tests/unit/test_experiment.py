"""Experiments: what is checked and written when a run begins."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from envmatrix.engines.base import Prepared
from envmatrix.errors import InputError
from envmatrix.matrix import load
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import all_libraries
from envmatrix.results import RunFolder
from envmatrix.system import bench_options, resource_paths
from envmatrix.trials.experiment_setup import snapshot_bench
from envmatrix.trials.images import check_images_unchanged
from envmatrix.trials.overrides import Overrides, apply_overrides
from tests.synthetic import make_plan, make_run


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
    assert digest == bench_options.folder_digest(copy) != snapshot_bench(source)[0]


def test_a_copy_is_whole_and_of_that_digest_or_absent(source, monkeypatch):
    def edited_meanwhile(here, there, **more):
        (source / "a.py").write_text("two")
        return whole(here, there, **more)

    whole = shutil.copytree
    monkeypatch.setattr(shutil, "copytree", edited_meanwhile)
    with pytest.raises(InputError, match="changed while it was being copied"):
        snapshot_bench(source)
    assert list((resource_paths.cache_folder() / "bench").iterdir()) == []


MATRIX = """
version: 1
factors:
  malloc: {glibc: {}, jemalloc: {apt: libjemalloc2, preload: libjemalloc.so.2}}
environments: {baseline: {}}
workloads: {mine: {command: [python, x.py], metric: {wall: true}}}
designs: {default: {environments: [baseline], workloads: mine}}
"""


def test_a_resumed_run_has_the_libraries_of_its_whole_matrix_as_when_it_began(tmp_path):
    matrix = parse(MATRIX, tmp_path / "matrix.yaml")
    folder = RunFolder(tmp_path / "run")
    folder.create(make_run(make_plan(()), libraries=all_libraries(matrix)), "something else")
    assert [library.key for library in folder.load().libraries] == ["malloc-jemalloc"]


@pytest.mark.parametrize("facts", [{"package torch": "2.13.0"}, {}])
def test_a_run_is_not_resumed_on_other_bits(facts):
    run = SimpleNamespace(images={"image@docker": {"package torch": "2.6.0", "image_id": "1"}})
    began = Prepared("image", "docker", "ref", "python", {}, {"package torch": "2.6.0", "image_id": "2"})
    check_images_unchanged(run, {("image", "docker"): began})
    with pytest.raises(InputError, match=r"package torch was 2\.6\.0, and is now (2\.13\.0|gone)"):
        check_images_unchanged(run, {("image", "docker"): replace(began, facts=facts)})


@pytest.mark.parametrize("name", ["allocators", "book"])
def test_environments_that_are_asked_for_take_the_place_of_factors_and_steps(name):
    matrix = load(resource_paths.bundled_matrix_file())
    assert matrix.designs[name].factors or matrix.designs[name].environments
    found = apply_overrides(matrix, name, Overrides(environments=("tcmalloc",)))
    assert (found.environments, dict(found.factors), found.cumulative) == (("tcmalloc",), {}, ())

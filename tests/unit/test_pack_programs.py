"""A user's own program is included in a pack; missing parts are reported before anything is downloaded."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.errors import EnvmatrixError, InputError, StoreError
from envmatrix.matrix.model import Workload
from envmatrix.runner.reproduction.pack_archive import Entry, Manifest, unpack, write_archive
from envmatrix.runner.reproduction.pack_contents import make_manifest
from envmatrix.runner.reproduction.pack_programs import (
    check_inputs_outside_pack,
    collect_programs,
    not_packed_texts,
    use_local_programs,
    use_packed_programs,
)
from envmatrix.trials.user_program.file_digests import program_files


class Matrix(SimpleNamespace):
    def model_copy(self, update):
        return Matrix(**{**self.__dict__, **update})


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "mine"
    (folder / "parts").mkdir(parents=True)
    (folder / "train.sh").write_text("#!/bin/sh\n")
    (folder / "train.sh").chmod(0o755)
    (folder / "train.py").write_text("import parts\n")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "data.bin").write_text("1")
    return folder


def made(
    folder, command=("./train.sh", "train.py"), engine="local", interpreter=None, modules=(), conda=(), preload=()
):
    workload = Workload(name="w", command=command, files=str(folder), metric={"wall": True})
    image = SimpleNamespace(interpreter=interpreter, modules=modules, conda=conda)
    return SimpleNamespace(
        name="r", created="2026", workloads={"w": workload}, programs={"w": program_files(workload)},
        environments={"a": SimpleNamespace(image=image, preload=preload)},
        arms=[SimpleNamespace(engine=engine, workload="w", runs="a")],
    )  # fmt: skip


def packed(tmp_path, run, most=2**20):
    contents = collect_programs(run, most)
    manifest = make_manifest(run, contents, {}, not_packed_texts(run, contents))
    write_archive(tmp_path / "r.tar.gz", manifest, contents, None)
    found, _, _ = unpack(tmp_path / "r.tar.gz", tmp_path / "there")
    return found


def elsewhere(tmp_path, run):
    """Return the unpacked matrix on a machine without this user's program."""
    workload = run.workloads["w"].model_copy(update={"files": "../nowhere"})
    return use_packed_programs(Matrix(workloads={"w": workload}), tmp_path / "there")


def test_a_program_comes_along_and_is_there_where_it_is_reproduced(tmp_path, program):
    run = made(program)
    manifest = packed(tmp_path, run)
    assert sorted(manifest.files) == [f"program/w/{name}" for name in ("parts/__init__.py", "train.py", "train.sh")]
    matrix = elsewhere(tmp_path, run)
    check_inputs_outside_pack(matrix, run, tmp_path / "there")
    root = Path(matrix.workloads["w"].files)
    assert program_files(matrix.workloads["w"]) == run.programs["w"]
    assert [os.access(root / name, os.X_OK) for name in ("train.sh", "train.py")] == [True, False]
    assert manifest.left_out == (
        "workload 'w': not packed from its folder: data.bin (neither Python files nor named by its command)",
    )


def test_an_archive_and_results_beside_a_program_are_none_of_its_files(program):
    run, archive, results = made(program), program / "r.tar.gz", program / "results"
    before = not_packed_texts(run, collect_programs(run), (archive, results))
    archive.touch()
    results.mkdir()
    assert not_packed_texts(run, collect_programs(run), (archive, results)) == before


def test_one_that_is_too_large_is_refused_with_both_ways_on(program):
    with pytest.raises(InputError, match=r"more than the limit of 0\.0 MiB") as caught:
        collect_programs(made(program), 5)
    assert "--programs SIZE" in caught.value.remedy
    assert "--programs none" in caught.value.remedy


@pytest.mark.parametrize("edit", [lambda file: file.write_text("2"), lambda file: file.unlink()])
def test_one_that_was_edited_since_is_not_packed_as_if_it_were_the_same(program, edit):
    run = made(program)
    edit(program / "train.py")
    with pytest.raises(InputError, match=r"train\.py has changed since the run began"):
        collect_programs(run)


def test_a_program_that_was_not_packed_is_missed_at_once_and_can_be_named(tmp_path, program):
    run = made(program)
    manifest = packed(tmp_path, run, most=0)
    assert manifest.left_out == ("workload 'w': its program is not packed",)
    matrix = elsewhere(tmp_path, run)
    with pytest.raises(InputError, match="is not in the pack and does not exist on this machine") as caught:
        check_inputs_outside_pack(matrix, run, tmp_path / "there")
    assert "--program w=FOLDER" in caught.value.remedy
    check_inputs_outside_pack(use_local_programs(matrix, run, {"w": program}), run, tmp_path / "there")
    (program / "train.py").write_text("another")
    with pytest.raises(InputError, match="differs from the file that the run used"):
        check_inputs_outside_pack(use_local_programs(matrix, run, {"w": program}), run, tmp_path / "there")


@pytest.mark.parametrize("given", [{"x": "."}, {"w": "nowhere"}])
def test_a_program_named_wrongly_is_told(tmp_path, program, given):
    run = made(program)
    with pytest.raises(InputError, match=r"no program 'x'|folder nowhere .* does not exist"):
        use_local_programs(Matrix(workloads=run.workloads), run, {name: Path(folder) for name, folder in given.items()})


def test_what_lies_outside_is_said_and_missed_on_engine_local_alone(tmp_path, program):
    data = tmp_path / "data.csv"
    data.touch()
    run = made(program, ("./train.sh", str(data)))
    packed(tmp_path, run)
    assert f"workload 'w': {data} is not packed" in not_packed_texts(run, collect_programs(run))
    matrix = elsewhere(tmp_path, run)
    check_inputs_outside_pack(matrix, run, tmp_path / "there")
    data.unlink()
    with pytest.raises(StoreError, match="is not in the pack and not on this machine"):
        check_inputs_outside_pack(matrix, run, tmp_path / "there")
    check_inputs_outside_pack(matrix, made(program, ("./train.sh", str(data)), "docker"), tmp_path / "there")


def test_an_interpreter_is_said_and_missed(tmp_path, program):
    run = made(program, interpreter="/no/such/python")
    assert next(iter(not_packed_texts(run, collect_programs(run)))).startswith(
        "interpreter /no/such/python is not packed"
    )
    with pytest.raises(InputError, match="/no/such/python, which is not in the pack and not on this machine"):
        check_inputs_outside_pack(Matrix(workloads={}), run, tmp_path)


def test_a_module_is_said_and_missed(tmp_path, program):
    run = made(program, modules=("Absent/9",))
    assert next(iter(not_packed_texts(run, collect_programs(run)))).startswith("module Absent/9 is not packed")
    with pytest.raises(EnvmatrixError, match="modules: Absent/9"):
        check_inputs_outside_pack(Matrix(workloads={}), run, tmp_path)


@pytest.mark.parametrize(("engine", "said"), [("local", ["/own/libx.so"]), ("docker", [])])
def test_a_library_at_a_path_of_this_machine_is_said(program, engine, said):
    run = made(program, engine=engine, preload=(("", "/own/libx.so"), ("", "libc.so.6"), ("malloc-toy", "libtoy.so")))
    texts = not_packed_texts(run, collect_programs(run))
    assert [text.split()[1] for text in texts if text.startswith("library ")] == said


@pytest.mark.parametrize(("size", "words"), [(2**60, "MiB are free"), (-1, "files\\.a\\.bytes: must be at least 0")])
def test_an_archive_that_promises_more_than_the_disk_holds_is_refused_before_it_is_unpacked(tmp_path, size, words):
    manifest = Manifest("r", "2026", "0.1", {"a": Entry("0", size)})
    write_archive(tmp_path / "r.tar.gz", manifest, {"a": b""}, None)
    (tmp_path / "there").mkdir()
    with pytest.raises(EnvmatrixError, match=words):
        unpack(tmp_path / "r.tar.gz", tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_conda_packages_are_told_to_be_solved_anew_elsewhere(program):
    run = made(program, conda=("python=3.11", "numpy"))
    said = not_packed_texts(run, {})
    assert "the conda packages python=3.11, numpy are not packed: `envmatrix reproduce` solves them again" in said

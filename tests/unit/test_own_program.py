"""Where a user's own program finds its input files, and where its output goes."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.block.program_folder import MAX_COPIED_BYTES
from envmatrix.engines.base import Job, Limits, Mounts
from envmatrix.engines.docker import give_work_folder_to_user
from envmatrix.errors import InputError
from envmatrix.matrix.model import MetricSource, Workload
from envmatrix.trials.feasibility import check_program_exists
from envmatrix.trials.user_program.invocation import link_files, metric_file, place_program_files


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (None, ""),
        ({"wall": True}, ""),
        ({"json_file": "out.json:speed"}, "out.json"),
        ({"json_file": "./runs/out.json:speed"}, "runs/out.json"),
        ({"json_file": "/tmp/out.json:speed"}, ""),
        ({"json_file": "../out.json:speed"}, ""),
        ({"json_file": "..:speed"}, ""),
    ],
)
def test_the_metrics_file_is_named_where_it_lies_in_the_programs_folder(metric, name):
    workload = Workload(name="mine", command=("a",), metric=metric and MetricSource.model_validate(metric))
    assert metric_file(workload) == name


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python -u trian.py", "there is no trian.py in"),
        ("python3.12 -X dev -W ignore trian.py", "there is no trian.py in"),
        ("python ../train.py", "../train.py is outside"),
        ("./trian.sh", "there is no ./trian.sh in"),
        ("uv run train.py", "`uv run` would install packages of a trial's folder into your own .venv"),
        ("uv run --no-sync train.py", ""),
        ("python -m trian", ""),
        ("python -c import.py", ""),
        ("python -u train.py", ""),
        ("pytest ../tests", ""),
    ],
)
def test_a_script_that_is_not_in_the_programs_folder_is_missed(tmp_path, command, said):
    (tmp_path / "train.py").touch()
    workload = Workload(name="mine", command=tuple(command.split()))
    if not said:
        check_program_exists(workload, tmp_path)
        return
    with pytest.raises(InputError, match=re.escape(said)):
        check_program_exists(workload, tmp_path)


def test_an_old_metric_or_record_is_neither_read_nor_overwritten(tmp_path):
    files, work = tmp_path / "files", tmp_path / "work"
    files.mkdir()
    work.mkdir()
    for name in ("train.py", "out.json", "record.json"):
        (files / name).write_text("old")
    link_files(work, files, str(files), "out.json")
    assert [path.name for path in work.iterdir()] == ["train.py"]
    (work / "out.json").write_text("new")
    assert (files / "out.json").read_text() == "old"


def test_a_metric_file_in_a_folder_is_written_anew_beside_what_else_is_there(tmp_path):
    files, work = tmp_path / "files", tmp_path / "work"
    (files / "out" / "more").mkdir(parents=True)
    work.mkdir()
    for name in ("x.json", "other.txt", "more/deep.txt"):
        (files / "out" / name).write_text("old")
    link_files(work, files, "/room/files", "out/x.json")
    assert sorted(path.name for path in (work / "out").iterdir()) == ["more", "other.txt"]
    assert (work / "out" / "more").readlink().as_posix() == "/room/files/out/more"
    (work / "out" / "x.json").write_text("new")
    assert (files / "out" / "x.json").read_text() == "old"


def test_small_files_are_copied_so_that_a_program_may_write_to_them_and_large_ones_linked(tmp_path):
    files, work = tmp_path / "files", tmp_path / "work"
    (files / "logs").mkdir(parents=True)
    work.mkdir()
    (files / "log.txt").write_bytes(b"x" * MAX_COPIED_BYTES)
    (files / "weights.pt").write_bytes(b"x" * (MAX_COPIED_BYTES + 1))
    (files / "last").symlink_to("log.txt")
    link_files(work, files, str(files))
    assert {path.name for path in work.iterdir() if path.is_symlink()} == {"weights.pt", "last", "logs"}
    (work / "log.txt").write_text("new")
    assert (files / "log.txt").read_bytes() == b"x" * MAX_COPIED_BYTES


def test_a_link_that_leaves_the_folder_leads_to_the_same_place_wherever_the_folder_is_mounted(tmp_path):
    files, work = tmp_path / "files", tmp_path / "work"
    for folder in (files / "out", work, tmp_path / "data"):
        folder.mkdir(parents=True)
    for place in (files, files / "out"):
        (place / "beside").symlink_to(os.path.relpath(tmp_path / "data", place))
        (place / "within").symlink_to(os.path.relpath(files / "x", place))
    link_files(work, files, "/room/files", "out/x.json")
    found = {str(path.relative_to(work)): str(path.readlink()) for path in work.rglob("*") if path.is_symlink()}
    within = {name: f"/room/files/{name}" for name in ("within", "out/within")}
    assert found == {**within, "beside": str(tmp_path / "data"), "out/beside": str(tmp_path / "data")}


def test_a_folder_with_links_out_of_the_programs_folder_is_a_real_one_in_a_container(tmp_path):
    files, work = tmp_path / "files", tmp_path / "work"
    for folder in (files / "sub" / "deep", files / "other", work, tmp_path / "data"):
        folder.mkdir(parents=True)
    (files / "sub" / "words.txt").write_text("mine")
    (files / "sub" / "deep" / "data").symlink_to("../../../data")
    (files / "sub" / "deep" / "itself").symlink_to("itself")
    (files / "other" / "python").symlink_to("/usr/bin/python3")
    (files / "itself").symlink_to("itself")
    link_files(work, files, "/room/files")
    found = {str(path.relative_to(work)): str(path.readlink()) for path in work.rglob("*") if path.is_symlink()}
    within = {name: f"/room/files/{name}" for name in ("itself", "other", "sub/deep/itself")}
    assert found == {**within, "sub/deep/data": str(tmp_path / "data")}
    (work / "sub" / "words.txt").write_text("new")
    assert (files / "sub" / "words.txt").read_text() == "mine"


def job(work):
    limits = Limits(seconds=1.0)
    return Job("run", "trial", None, (), {}, (), Mounts(work, {}), limits, None)


def test_by_links_a_program_finds_what_lies_next_to_its_folder_and_writes_nothing_there(tmp_path, monkeypatch):
    monkeypatch.setattr("envmatrix.trials.user_program.invocation.make_overlay", lambda *_: None)
    files, work = tmp_path / "repository" / "project", tmp_path / "work"
    for folder in (files, work, tmp_path / "common", tmp_path / "repository" / "data"):
        folder.mkdir(parents=True)
    (files / "train.py").write_text("")
    (tmp_path / "repository" / "data" / "x.bin").write_text("x")
    (tmp_path / "common" / "y.bin").write_text("y")
    there = place_program_files(SimpleNamespace(starts_anywhere=True), job(work), files, str(files)).folder
    assert there.name == "project"
    assert (there / "train.py").exists()
    assert (there / "../data/x.bin").read_text() == "x"
    assert (there / "../../common/y.bin").read_text() == "y"
    (there / "../log.txt").write_text("mine")
    assert not (tmp_path / "repository" / "log.txt").exists()


@pytest.mark.parametrize(("folder", "above"), [("/", ""), ("/tmp", ".."), ("/usr/lib", "../..")])
def test_a_folder_near_the_root_is_laid_out_as_any_other(tmp_path, monkeypatch, folder, above):
    monkeypatch.setattr("envmatrix.trials.user_program.invocation.make_overlay", lambda *_: None)
    monkeypatch.setattr("envmatrix.trials.user_program.invocation.link_files", lambda *_: None)
    engine, place = SimpleNamespace(starts_anywhere=True), Path(folder)
    there = place_program_files(engine, job(tmp_path), place, folder).folder
    assert there.name == (place.name or "root")
    assert not above or (there / above / "etc" / "passwd").exists()


def test_a_container_starts_in_its_work_folder(tmp_path):
    files, work = tmp_path / "project", tmp_path / "work"
    files.mkdir()
    work.mkdir()
    (files / "train.py").write_text("")
    assert place_program_files(SimpleNamespace(starts_anywhere=False), job(work), files, "/room/files").folder is None
    assert (work / "train.py").exists()


def test_in_docker_the_containers_user_may_write_to_the_copies_but_is_given_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "work" / "out").mkdir(parents=True)
    (tmp_path / "work" / "out" / "log.txt").touch()
    (tmp_path / "work" / "data").symlink_to(tmp_path)
    given = []
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setattr("pathlib.Path.stat", lambda path, **more: SimpleNamespace(st_uid=0, st_mode=0o40755))
    monkeypatch.setattr("os.chown", lambda path, *ids, follow_symlinks: given.append((path.name, ids, follow_symlinks)))
    give_work_folder_to_user(tmp_path / "work", "9:9", made_here=False)
    assert given == [("work", (9, 9), False)]
    give_work_folder_to_user(tmp_path / "work", "9:9", made_here=True)
    assert sorted(name for name, *_ in given[1:]) == ["data", "log.txt", "out", "work"]

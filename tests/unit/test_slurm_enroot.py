"""Enroot's command lines, compared whole, and the training scripts from `export`."""

import subprocess
from pathlib import Path

import pytest

from envmatrix.engines.base import Job, Limits, Mounts, Prepared
from envmatrix.engines.catalog import find_engine
from envmatrix.engines.enroot import container_name, squashfs_partition_number, start_argv
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.slurm.training_script_export import training_script
from envmatrix.plan.environment import Environment, Image

LISTING = """\
------------------------------------------------------------------------------
ID   |GROUP   |LINK    |SIF POSITION (start-end)  |TYPE
------------------------------------------------------------------------------
1    |1       |NONE    |32176-32215               |Def.FILE
2    |1       |NONE    |32215-32215               |JSON.Generic
3    |1       |NONE    |32215-32334               |JSON.Generic
4    |1       |NONE    |32768-57344               |FS (Squashfs/*System/amd64)
"""
HOSTILE = "a b'c\"d$HOME`id`;|&\\*é"


def made(work="/w/t1", env=None):
    return Job(
        "run", "t1", Prepared("i", "enroot", "/c/image.sqsh", "/opt/venv/bin/python", {}),
        ("/opt/venv/bin/python", "-m", "bench"), env or {"A": HOSTILE}, ("/opt/l/libx.so",),
        Mounts(Path(work), {"bench": Path("/c/bench")}), Limits(60.0), Path("/log"),
    )  # fmt: skip


def test_the_whole_command_is_this():
    assert start_argv(made(), "name") == [
        "enroot", "start",
        "--mount", "/w/t1:/work:none:x-create=dir,bind,rw",
        "--mount", "/c/bench:/envmatrix/bench:none:x-create=dir,bind,ro",
        "--mount", "tmpfs:/tmp:tmpfs:x-create=dir,rw,mode=1777", "--",
        "name", "/bin/sh", "-c", 'cd "$0" && exec "$@"', "/work", "/usr/bin/env", "-i",
        f"A={HOSTILE}", "LD_PRELOAD=/opt/l/libx.so", "/opt/venv/bin/python", "-m", "bench",
    ]  # fmt: skip


@pytest.mark.parametrize("folder", ["/a b", "/a:b", "/a,b", "/a$b", "/a\\b", "/a\nb"])
def test_a_folder_that_its_fstab_cannot_name_is_refused(folder):
    with pytest.raises(EngineError, match="cannot mount"):
        start_argv(made(folder), "name")


def test_the_squashfs_is_found_in_a_sif_and_nothing_is_made_up():
    assert squashfs_partition_number(LISTING) == "4"
    assert squashfs_partition_number(LISTING.replace("Squashfs", "Ext3")) is None
    assert squashfs_partition_number("") is None
    assert container_name("/a") != container_name("/b")


def environment(**more):
    body = {"name": "fast", "description": "", "levels": {"malloc": "x"}, "image": Image("i"), "preload": (),
            "variables": {"A": HOSTILE, "B": None}, "claims": {}}  # fmt: skip
    return Environment(**{**body, **more})


def test_an_exported_script_sets_exactly_the_environment(tmp_path):
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s|%s|%s" "$A" "${B-unset}" "$1"\n')
    (tmp_path / "python").chmod(0o755)
    prepared = Prepared("i", "local", str(tmp_path), str(tmp_path / "python"), {})
    script = training_script(environment(), find_engine("local"), prepared, (), "slurm")
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={"B": "leaks"})
    assert shown.stdout == f"{HOSTILE}|unset|train.py"


def test_an_exported_script_for_apptainer_and_for_pyxis_names_image_and_variables(monkeypatch):
    monkeypatch.setattr("envmatrix.engines.apptainer.is_unprivileged_root", lambda: False)
    prepared = Prepared("i", "apptainer", "/my images/i.sif", "/opt/venv/bin/python", {})
    plain = training_script(environment(cpus="0-3"), find_engine("apptainer"), prepared, ("/l/x.so",), "slurm")
    assert "image='/my images/i.sif'" in plain
    assert "exec taskset --cpu-list 0-3 apptainer exec --cleanenv" in plain
    assert "  LD_PRELOAD=/l/x.so \\\n" in plain
    pyxis = training_script(environment(), find_engine("apptainer"), prepared, (), "pyxis")
    assert 'srun --container-image="$image"' in pyxis
    assert "  -u B \\\n" in pyxis
    for text in (plain, pyxis):
        assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_venv_cannot_be_exported_for_pyxis():
    venv = Prepared("i", "local", "/venv", "/venv/bin/python", {})
    with pytest.raises(InputError, match="is no image file on engine local"):
        training_script(environment(), find_engine("local"), venv, (), "pyxis")


def test_what_enroot_unpacked_is_what_pyxis_starts():
    prepared = Prepared("i", "enroot", "/my images/i.sqsh", "/opt/venv/bin/python", {})
    pyxis = training_script(environment(), find_engine("enroot"), prepared, (), "pyxis")
    assert "image='/my images/i.sqsh'\n" in pyxis
    assert "sif dump" not in pyxis


def test_what_needs_a_daemon_is_no_batch_script():
    prepared = Prepared("i", "docker", "envmatrix/i:1", "/opt/venv/bin/python", {})
    with pytest.raises(InputError, match="engine docker needs its own service on every node"):
        training_script(environment(), find_engine("docker"), prepared, (), "slurm")

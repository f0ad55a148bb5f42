"""Exported shell lines set up everything that a trial had."""

import json
import subprocess
from dataclasses import replace

import pytest

from envmatrix.api.matrix_and_run_lookup import matrix_of_run
from envmatrix.engines.base import Prepared
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import InputError
from envmatrix.launchers.slurm.training_script_export import training_script
from envmatrix.plan.environment import Environment, Image, resolve_environment
from envmatrix.plan.export_lines import dockerfile, export_lines
from envmatrix.results import RunFolder
from tests.committed import REFERENCES

PLACED = Environment("e", "", {}, Image("i"), {"A": "b c"}, (), {}, cpus="0-3", memory_nodes="1")
SIF = Prepared("i", "apptainer", "/i.sif", "/usr/bin/python3", {})


def lines_of(environment, form):
    return dockerfile(environment, (), "debian") if form == "dockerfile" else export_lines(environment, (), form)


@pytest.mark.parametrize("form", ["sh", "dockerfile"])
def test_the_placement_stands_below_the_lines(form):
    assert "taskset --cpu-list 0-3 numactl --membind=1 COMMAND" in lines_of(PLACED, form)


def test_programs_are_told_the_placement_too():
    told = json.loads(export_lines(PLACED, (), "json"))
    assert (told["cpus"], told["memory_nodes"], told["variables"]) == ("0-3", "1", {"A": "b c"})


def test_any_value_arrives_in_a_shell_as_it_is():
    value = """b  'c' "d" $(echo e) `echo f` $HOME; echo g \\ * #"""
    lines = export_lines(replace(PLACED, variables={"A": value, "B": None}), (), "sh")
    script = f'{lines}\nprintf "%s|%s" "$A" "${{B-unset}}"'
    said = subprocess.run(["sh", "-c", script], env={"B": "1"}, capture_output=True, text=True, check=True).stdout
    assert said == f"{value}|unset"


@pytest.mark.parametrize("form", ["sh", "dockerfile"])
def test_a_quota_which_no_variable_sets_is_told_with_what_sets_it(form):
    limited = Environment("e", "", {}, Image("i"), {}, (), {}, cpu_quota=1.5)
    assert "docker run --cpus 1.5, a pod's limits.cpu" in lines_of(limited, form)
    assert "CPUQuota=150%" in training_script(limited, find_engine("apptainer"), SIF, (), "slurm")
    assert json.loads(export_lines(limited, (), "json"))["cpu_quota"] == 1.5


@pytest.mark.parametrize("form", ["slurm", "pyxis"])
def test_a_training_script_places_its_program(form):
    assert "taskset --cpu-list 0-3 numactl --membind=1 " in training_script(
        PLACED, find_engine("apptainer"), SIF, (), form
    )


def test_lines_that_name_the_cache_say_how_to_keep_its_libraries(monkeypatch):
    monkeypatch.setenv("ENVMATRIX_CACHE", "/cache")
    assert "envmatrix export e --bundle DIR" in export_lines(PLACED, ("/cache/libraries/1/libx.so",), "sh")
    assert "--bundle" not in export_lines(PLACED, ("/bundle/lib/x/libx.so", "libm.so.6"), "sh")
    assert "--bundle" not in export_lines(PLACED, (), "sh")
    local = Prepared("i", "local", "/venv", "/venv/bin/python", {})
    for preload, told in (("/cache/libraries/1/libx.so", True), ("/bundle/lib/x/libx.so", False)):
        script = training_script(PLACED, find_engine("local"), local, (preload,), "slurm")
        assert ("envmatrix export e --bundle DIR" in script) == told


@pytest.mark.parametrize("path", ["/a b/libx.so", "/a:b/libx.so"])
def test_a_library_that_the_loader_cannot_preload_is_no_line(path):
    with pytest.raises(InputError, match="spaces and colons"):
        export_lines(PLACED, (path,), "sh")


def test_a_dockerfile_says_what_it_cannot_unset():
    assert "# A must not be set" in dockerfile(replace(PLACED, variables={"A": None}), (), "debian")


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.name)
def test_the_matrix_of_a_run_that_an_older_envmatrix_took_can_be_exported(path):
    folder = RunFolder(path)
    run = folder.load_for_resume()
    matrix = matrix_of_run(folder, run)
    assert resolve_environment(matrix, run.design.baseline, {}).levels

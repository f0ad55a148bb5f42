"""Conda packages as a level, without solving: the messages about them."""

import sys

import pytest

from envmatrix.build.cache import Cache
from envmatrix.build.python.conda import ensure_conda_image
from envmatrix.errors import SkipEnvironmentError
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.trials.user_program.passed_variables import missing_module_text

FORGE = Image("forge", conda=("python=3.11", "numpy"))


def test_without_py_rattler_the_environment_is_skipped_with_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rattler", None)
    with pytest.raises(SkipEnvironmentError, match=r"cannot solve python=3\.11, numpy") as told:
        ensure_conda_image(Cache(tmp_path), FORGE, print)
    assert told.value.remedy == f"{sys.executable} -m pip install py-rattler"


def test_a_program_that_misses_a_module_is_told_where_to_write_its_package():
    said = missing_module_text(
        Workload(name="w", command=("python", "a.py")), FORGE, "ModuleNotFoundError: No module named 'yaml'"
    )
    assert said == (
        "w runs in a conda environment of python=3.11, numpy, which has no module 'yaml'; add its package under `conda`"
    )


def test_no_container_engine_takes_a_conda_environment_of_the_machine():
    assert FORGE.on_host

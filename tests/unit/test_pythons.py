"""Which Python of a machine a version selects; free-threaded builds have the suffix t."""

import pytest

from envmatrix.build.python import interpreters
from envmatrix.build.python.interpreters import Python, find_python
from envmatrix.build.python.pip import target_options
from envmatrix.errors import SkipEnvironmentError
from envmatrix.matrix import load
from envmatrix.plan.environment import resolve_environment

LOCKED = Python("/usr/bin/python3.13", "3.13.1", "cp313-linux_x86_64")
FREE = Python("/opt/python3.13t", "3.13.2", "cp313t-linux_x86_64")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("3.13", LOCKED), ("3.13.1", LOCKED), ("3.13t", FREE), ("3.13.2t", FREE)],
)
def test_a_version_names_the_build_with_the_lock_and_one_with_t_the_other(monkeypatch, wanted, found):
    there = {python.path: python for python in (FREE, LOCKED)}
    monkeypatch.setattr(interpreters, "_candidates", lambda _: iter(there))
    monkeypatch.setattr(interpreters, "inspect_interpreter", there.get)
    assert find_python(wanted) == found


@pytest.mark.parametrize("wanted", ["3.13.9t", "3.1", "3.13.1t", "3.13.2"])
def test_another_build_is_not_taken_for_the_one_that_is_missing(monkeypatch, wanted):
    there = {python.path: python for python in (FREE, LOCKED)}
    monkeypatch.setattr(interpreters, "_candidates", lambda _: iter(there))
    monkeypatch.setattr(interpreters, "inspect_interpreter", there.get)
    with pytest.raises(SkipEnvironmentError, match="was not found on this machine") as skipped:
        find_python(wanted)
    assert f"uv python install {wanted}" in skipped.value.remedy


def test_a_free_threaded_python_is_looked_for_by_its_own_names(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(interpreters.shutil, "which", lambda name: asked.append(name) or f"/x/{name}")
    monkeypatch.setattr(interpreters, "run", lambda argv, **_: asked.append(argv[-1]) or pytest.fail("no uv here"))
    monkeypatch.setattr(interpreters, "uv_program", lambda: "/x/uv")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    for name in ("3.13.0", "3.13.0t"):
        (tmp_path / "versions" / name / "bin").mkdir(parents=True)
        (tmp_path / "versions" / name / "bin" / "python").touch()
    found = interpreters._candidates("3.13t")
    assert [next(found) for _ in range(3)] == [
        "/x/python3.13t", "/x/python3.13-nogil", str(tmp_path / "versions/3.13.0t/bin/python"),
    ]  # fmt: skip


@pytest.mark.parametrize("noise", [("", ""), ("a site that talks", "bye"), ("[INFO] begins", "[INFO] ends")])
def test_a_python_is_asked_whatever_its_site_prints_before_and_at_its_end(tmp_path, noise):
    python = tmp_path / "python"
    facts = '["/x/python", "3.12.1", "cp312", "linux_x86_64"]'
    python.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in (noise[0], facts, noise[1])))
    python.chmod(0o755)
    assert interpreters.inspect_interpreter(str(python)) == Python("/x/python", "3.12.1", "cp312-linux_x86_64")


def test_wheels_are_chosen_for_the_free_threaded_build():
    options = target_options("3.13t")
    assert options[:2] == ["--python-version", "3.13"]
    assert options[options.index("--abi") + 1] == "cp313t"


def test_the_pythons_are_levels_that_each_say_what_must_be_read_back(tmp_path):
    (tmp_path / "matrix.yaml").write_text(
        "version: 2\ninclude: envmatrix:python\nfactors: {packages: {mine: {requirements: [numpy]}}}\n"
        "environments: {baseline: {}}\nworkloads: {w: {command: [python, x.py]}}\ndesigns: {default: {workloads: w}}\n"
    )
    matrix = load(tmp_path / "matrix.yaml")
    assert resolve_environment(matrix, "baseline", {}).image.name == "packages-mine", (
        "a level that installs nothing names nothing"
    )
    for name in matrix.factors["python"].levels:
        if name != "default":
            environment = resolve_environment(matrix, f"python-{name}", {})
            assert environment.image.name == f"python-{name}_packages-mine"
            assert environment.image.python == name.removesuffix("-jit")
            claimed = {claim.path for claim in environment.claims}
            assert claimed & {"system.python"}
            assert name not in ("3.13t", "3.14t") or "system.gil" in claimed

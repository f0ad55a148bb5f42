"""Commands that download and build, compared whole; user input must never become an option or a command."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.api import locks_and_images
from envmatrix.build.debian import packages
from envmatrix.build.libraries import install_hints
from envmatrix.build.python import pip, venvs
from envmatrix.engines.base import Prepared, library_path
from envmatrix.engines.local import preload_variable
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.plan.environment import Environment, Image, Library
from envmatrix.system import resource_paths
from envmatrix.trials.images import check_preloaded_libraries

HOSTILE = ["--index-url=http://evil.example", "-r/etc/passwd", "torch; rm -rf $HOME", "$(touch x)", 'a"b', "a b"]


def test_resolving_asks_pip_for_a_report_and_installs_nothing() -> None:
    request = pip.ResolveRequest(("torch==2.13.0", "numpy"), ("https://wheels.example/cpu",))
    assert pip.Pip(("python", "-m", "pip")).resolve_argv(request, Path("r.json")) == [
        "python", "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--only-binary=:all:",
        "--extra-index-url=https://wheels.example/cpu", "--report", "r.json", "--", "torch==2.13.0", "numpy",
    ]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_requirement_stays_one_argument_after_the_options(text: str) -> None:
    argv = pip.Pip(("pip",)).resolve_argv(pip.ResolveRequest((text,)), Path("r"))
    assert argv[argv.index("--") + 1 :] == [text]
    argv = packages.print_uris_argv((), text)
    assert argv[argv.index("--") + 1 :] == [text]


def test_a_venv_is_built_with_the_network_off_and_hashes_required() -> None:
    argv = venvs.install_argv("uv", Path("/v"), [Path("/w/0"), Path("/w/1")], Path("/r.txt"))
    assert argv == [
        "uv", "pip", "install", "--quiet", "--no-config", "--offline", "--no-index", "--no-deps", "--require-hashes",
        "--link-mode", "hardlink", "--python", "/v/bin/python", "--find-links=/w/0", "--find-links=/w/1",
        "--requirement", "/r.txt",
    ]  # fmt: skip


def test_the_hosts_pip_keeps_its_mirror_but_not_its_install_target() -> None:
    kept = pip.pip_variables({"PIP_INDEX_URL": "https://mirror.example", "PIP_TARGET": "/x", "LD_PRELOAD": "l.so"})
    assert kept["PIP_INDEX_URL"] == "https://mirror.example"
    assert not {"PIP_TARGET", "LD_PRELOAD"} & set(kept)


def test_preloads_keep_their_order_and_no_preload_sets_no_variable() -> None:
    assert preload_variable(("/a/libm.so", "/b/libo.so")) == {"LD_PRELOAD": "/a/libm.so:/b/libo.so"}
    assert preload_variable(()) == {}


@pytest.mark.parametrize("path", ["/my cache/lib.so", "/a:b/lib.so", "/a\tb/lib.so"])
def test_a_preload_path_that_the_loader_would_split_is_refused(path: str) -> None:
    with pytest.raises(EngineError, match="ENVMATRIX_CACHE"):
        preload_variable((path,))


def test_a_library_that_cannot_be_had_skips_with_a_line_for_each_package_manager() -> None:
    lines = install_hints(Library("malloc-jemalloc", (), ("libjemalloc2",), ("libjemalloc.so.2",)))
    prepared = Prepared("i", "local", "/v", "/v/python", {}, missing={"malloc-jemalloc": f"no apt\n  -> {lines}"})
    with pytest.raises(SkipEnvironmentError) as skipped:
        library_path(prepared, "malloc-jemalloc", "libjemalloc.so.2")
    assert "apt-get install libjemalloc2" in skipped.value.remedy
    assert "dnf install jemalloc" in skipped.value.remedy
    assert "conda install -c conda-forge jemalloc" in skipped.value.remedy


def test_a_library_path_is_absolute_with_a_key_and_bare_without() -> None:
    prepared = Prepared("i", "local", "/v", "/v/python", {"k": "/lib/k"}, loader=frozenset({"libnuma.so.1"}))
    assert library_path(prepared, "k", "libx.so") == "/lib/k/libx.so"
    assert library_path(prepared, "", "libnuma.so.1") == "libnuma.so.1"
    with pytest.raises(SkipEnvironmentError):
        library_path(prepared, "", "libabsent.so")


def test_what_is_made_beside_the_matrix_of_an_installed_package_is_made_where_its_user_is(tmp_path, monkeypatch):
    """Guards against `build intel-omp` writing its SIF into site-packages, where `apptainer run` does not look."""
    package, here = tmp_path / "site-packages" / "envmatrix", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with monkeypatch.context() as installed:
        installed.setattr(resource_paths, "_PACKAGE", package)
        assert resource_paths.output_folder(package / "_project" / "matrix.yaml") == here
        assert resource_paths.output_folder(tmp_path / "mine" / "matrix.yaml") == tmp_path / "mine"
    (tmp_path / "matrix.yaml").write_text("version: 2\ninclude: envmatrix:malloc\nenvironments: {baseline: {}}\n")
    monkeypatch.setattr(locks_and_images, "output_folder", lambda _: here)
    made = locks_and_images.write_definitions(["baseline"], matrix=tmp_path / "matrix.yaml")
    assert made
    assert {file.parent for file in made} == {here / "containers"}
    folders: list[Path] = []
    named = SimpleNamespace(start="run it")
    builder = SimpleNamespace(base=print, build_named=lambda *given: folders.append(given[2]) or named)
    monkeypatch.setattr("envmatrix.trials.images.open_engines", lambda names, _: dict.fromkeys(names, builder))
    assert locks_and_images.build(["baseline"], engine="docker", matrix=tmp_path / "matrix.yaml").starts == ("run it",)
    assert folders == [here / "containers"]


def test_an_absolute_path_is_preloaded_as_written_and_its_environment_is_skipped_where_it_is_not(tmp_path) -> None:
    prepared = Prepared("i", "docker", "i", "python", {}, loader=frozenset({"libnuma.so.1"}))
    wanted = Environment("mine", "", {}, Image("i"), {}, (("", str(tmp_path / "lib.so")),), ())
    assert library_path(prepared, *wanted.preload[0]) == str(tmp_path / "lib.so")
    check_preloaded_libraries(prepared, wanted, here=False)
    with pytest.raises(SkipEnvironmentError, match=r"no such file: .*lib\.so"):
        check_preloaded_libraries(prepared, wanted, here=True)
    (tmp_path / "lib.so").touch()
    check_preloaded_libraries(prepared, wanted, here=True)

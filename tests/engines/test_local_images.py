"""Locks, wheelhouse, library folders and venvs, with the real pip and uv and wheels of a few bytes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envmatrix.build.cache import Cache
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.local import LocalEngine
from envmatrix.errors import EngineError, ExitCode, InputError, SkipEnvironmentError
from envmatrix.plan.environment import Image, Library
from tests.engines.conftest import Said, seconds_of, write_wheel

pytestmark = pytest.mark.local

IMAGE = Image("tiny", requirements=("tinypkg==1.0",))
LIBRARIES = (
    Library("openmp-one", ("tinylib==1.0",), (), ("libtiny.so",)),
    Library("openmp-two", ("tinylib==2.0",), (), ("libtiny.so",)),
)


def usage(folder: Path) -> int:
    """Return the disk usage of a folder in bytes, counting hard links once."""
    said = subprocess.run(["du", "-s", "--block-size=1", folder], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[0])


def test_a_venv_is_built_from_a_lock_and_a_second_prepare_builds_nothing(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    engine = LocalEngine(places)
    Locks(places.locks, places.cache, said).make([IMAGE], LIBRARIES)
    said.clear()
    first = engine.prepare(IMAGE, LIBRARIES, said)
    out = subprocess.run([first.python, "-c", "import tinypkg; print(tinypkg.VERSION)"], capture_output=True, text=True)
    assert out.stdout == "1.0\n", out.stderr
    assert first.facts["package tinypkg"] == "1.0"
    for wheel in wheels.iterdir():
        wheel.unlink()  # anything built from now on comes from the cache
    said.clear()
    assert min(seconds_of(lambda: engine.prepare(IMAGE, LIBRARIES, said), first) for _ in range(5)) < 0.2
    assert said == []


def test_venvs_of_two_machines_hold_the_same_files_whenever_their_wheels_were_downloaded(
    places: BuildPaths, wheels: Path, said: Said, tmp_path: Path
) -> None:
    digests = []
    for number in range(2):
        root = tmp_path / f"machine-{number}"
        root.mkdir()
        (root / "tools").symlink_to((places.cache.root / "tools").resolve())
        machine = replace(places, cache=Cache(root))
        for wheel in wheels.iterdir():
            os.utime(wheel, (1.7e9 + number, 1.7e9 + number))
        digests.append(LocalEngine(machine).prepare(IMAGE, LIBRARIES, said).facts["files_digest"])
    assert digests[0] == digests[1]


def test_two_versions_of_one_library_lie_side_by_side(places: BuildPaths, wheels: Path, said: Said) -> None:
    prepared = LocalEngine(places).prepare(IMAGE, LIBRARIES, said)
    one, two = (Path(prepared.libraries[item.key]) / "libtiny.so" for item in LIBRARIES)
    assert one.read_bytes() == b"\x7fELF first"
    assert two.read_bytes() == b"\x7fELF second"
    assert prepared.facts["library openmp-two"] == "tinylib==2.0"


def test_a_preload_that_its_package_does_not_hold_is_named_with_what_it_has(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    wrong = replace(LIBRARIES[0], files=("libtinny.so",))
    with pytest.raises(InputError, match=r"does not contain libtinny\.so") as refused:
        LocalEngine(places).prepare(IMAGE, (wrong,), said)
    assert "libtiny.so" in refused.value.remedy


def test_without_a_committed_lock_one_is_made_in_the_cache_and_said(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    LocalEngine(places).prepare(IMAGE, (), said)
    assert any("does not exist; locking it now" in line for line in said)
    assert list(places.locks.iterdir()) == []


def test_a_missing_lock_of_several_libraries_is_reported_once(places: BuildPaths, wheels: Path, said: Said) -> None:
    LocalEngine(places).prepare(IMAGE, LIBRARIES, said)
    reported = [line for line in said if line.startswith("libraries.") and "does not exist" in line]
    assert len(reported) == 1


def test_a_lock_that_matrix_yaml_has_outgrown_is_not_used(places: BuildPaths, wheels: Path, said: Said) -> None:
    Locks(places.locks, places.cache, said).make([IMAGE], ())
    write_wheel(wheels, "tinypkg", "2.0", {"tinypkg/__init__.py": b"VERSION = '2.0'\n"})
    said.clear()
    prepared = LocalEngine(places).prepare(replace(IMAGE, requirements=("tinypkg==2.0",)), (), said)
    assert prepared.facts["package tinypkg"] == "2.0"
    assert any("does not match matrix.yaml" in line for line in said)


def test_a_wrong_hash_names_the_package_the_line_and_the_remedy(places: BuildPaths, wheels: Path, said: Said) -> None:
    lock = Locks(places.locks, places.cache, said).make([IMAGE], ())[0]
    good = lock.read_text()
    lock.write_text(good.replace("sha256:", "sha256:" + "0" * 8, 1).replace("0" * 8, "", 1))
    changed = good.split("sha256:")[1][:64]
    lock.write_text(good.replace(changed, "0" * 64))
    with pytest.raises(InputError) as refused:
        LocalEngine(places).prepare(IMAGE, (), said)
    text = str(refused.value)
    assert text.startswith(f"{lock}:5: the sha256 of tinypkg==1.0 does not match")
    assert changed in text
    assert "envmatrix lock" in refused.value.remedy
    assert refused.value.exit_code == ExitCode.BAD_INPUT
    assert not (places.cache.root / "venvs").exists()


def test_a_replaced_wheel_of_a_library_is_refused_not_passed_over(places: BuildPaths, wheels: Path, said: Said) -> None:
    Locks(places.locks, places.cache, said).make([], LIBRARIES[:1])
    write_wheel(wheels, "tinylib", "1.0", {"tinylib-1.0.data/data/lib/libtiny.so": b"\x7fELF evil"})
    with pytest.raises(InputError, match="does not match the lock"):
        LocalEngine(places).prepare(IMAGE, LIBRARIES[:1], said)


def test_an_extra_index_that_cannot_be_reached_is_passed_over(places: BuildPaths, wheels: Path, said: Said) -> None:
    image = replace(IMAGE, index=("http://127.0.0.1:9/whl/cpu",))
    assert LocalEngine(places).prepare(image, (), said).facts["package tinypkg"] == "1.0"


def test_an_unreachable_index_without_another_source_is_one_clear_error(
    places: BuildPaths, wheels: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    image = Image("other", requirements=("absentpkg==1.0",), index=("http://127.0.0.1:9/whl/cpu",))
    with pytest.raises(EngineError) as refused:
        LocalEngine(places).prepare(image, (), said)
    assert "absentpkg==1.0" in refused.value.message
    assert "http://127.0.0.1:9/whl/cpu" in refused.value.message
    assert "pip config list" in refused.value.remedy


def test_a_python_that_is_not_here_skips_with_how_to_get_it(places: BuildPaths, said: Said) -> None:
    with pytest.raises(SkipEnvironmentError, match=r"Python 3\.99 was not found") as skipped:
        LocalEngine(places).prepare(replace(IMAGE, python="3.99"), (), said)
    assert "uv python install 3.99" in skipped.value.remedy


def test_an_interpreter_without_torch_is_there_for_programs_that_need_none(
    places: BuildPaths, said: Said, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    prepared = LocalEngine(places).prepare(Image("host", interpreter=bare), (), said)
    assert prepared.python == bare
    with pytest.raises(SkipEnvironmentError, match="cannot import torch") as skipped:
        prepared.check_torch()
    assert "-m pip install torch" in skipped.value.remedy
    again = LocalEngine(places).prepare(Image("host", interpreter=bare), (), said)
    assert again.without_torch, "it is asked each time: torch may be installed meanwhile"
    with pytest.raises(SkipEnvironmentError, match="not a Python that starts"):
        LocalEngine(places).prepare(Image("host", interpreter="/bin/true"), (), said)


def put(site: Path, name: str, version: str) -> None:
    """Install a package of that version, with ``__version__``, into a site-packages folder."""
    for old in site.glob(f"{name}-*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    (site / name).mkdir(exist_ok=True)
    (site / name / "__init__.py").write_text(f"__version__ = '{version}'\n")
    (site / f"{name}-{version}.dist-info").mkdir()
    (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_what_was_upgraded_in_an_interpreter_since_it_was_looked_at_is_seen(
    places: BuildPaths, said: Said, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    image = Image("host", interpreter=str(tmp_path / "own" / "bin" / "python"))
    site = next((tmp_path / "own").glob("lib/python3*/site-packages"))
    put(site, "torch", "1.0")
    first = LocalEngine(places).prepare(image, (), said).facts
    put(site, "torch", "2.25")
    second = LocalEngine(places).prepare(image, (), said).facts
    assert (first["torch"], second["torch"]) == ("1.0", "2.25")
    assert first["over_packages"] != second["over_packages"]


def test_what_torch_an_interpreter_has_is_asked_once_for_all_images_of_it(
    places: BuildPaths, said: Said, tmp_path: Path
) -> None:
    """Guards against importing torch twice, which takes seconds: for the first look at a program and for its run."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    site, imports = next((tmp_path / "own").glob("lib/python3*/site-packages")), tmp_path / "imports"
    put(site, "torch", "1.0")
    (site / "torch" / "__init__.py").write_text(f"__version__ = '1.0'\nopen({str(imports)!r}, 'a').write('once ')\n")
    found = [
        LocalEngine(places).prepare(Image(name, interpreter=str(tmp_path / "own" / "bin" / "python")), (), said)
        for name in ("first-look", "python-mine")
    ]
    assert [prepared.facts["torch"] for prepared in found] == ["1.0", "1.0"]
    assert imports.read_text() == "once "


def test_the_packages_of_a_conda_environment_are_known_with_their_builds(
    places: BuildPaths, said: Said, tmp_path: Path
) -> None:
    """Without a conda channel at hand, the test writes the files that conda leaves in an environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    put(next((tmp_path / "own").glob("lib/python3*/site-packages")), "torch", "1.0")
    records = tmp_path / "own" / "conda-meta"
    records.mkdir()
    (records / "history").touch()
    (records / "pytorch-1.0-cpu_mkl_py311_h0.json").write_text("{}")
    (records / "libblas-3.9.0-31_mkl.json").write_text("{}")
    image = Image("host", interpreter=str(tmp_path / "own" / "bin" / "python"))
    facts = LocalEngine(places).prepare(image, (), said).facts
    assert (facts["package conda:pytorch"], facts["package conda:libblas"]) == ("1.0 cpu_mkl_py311_h0", "3.9.0 31_mkl")
    (records / "libblas-3.9.0-31_mkl.json").rename(records / "libblas-3.9.0-31_openblas.json")
    assert LocalEngine(places).prepare(image, (), said).facts["package conda:libblas"] == "3.9.0 31_openblas"


def test_a_library_without_package_or_system_copy_is_missing_with_its_remedy(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    absent = Library("malloc-absent", ("absentpkg==1.0",), (), ("libabsent.so.1",))
    prepared = LocalEngine(places).prepare(IMAGE, (absent,), said)
    assert "malloc-absent" not in prepared.libraries
    assert "install it" in prepared.missing["malloc-absent"]


def test_the_systems_own_library_serves_where_no_package_can_be_had(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    fallback = Library("libc", ("absentpkg==1.0",), (), ("libm.so.6",))
    prepared = LocalEngine(places).prepare(IMAGE, (fallback,), said)
    assert (Path(prepared.libraries["libc"]) / "libm.so.6").resolve().is_file()
    assert "the system's own" in prepared.facts["library libc"]


def test_what_a_wheel_needs_is_the_systems_own_where_no_debian_package_can_be_had(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    mixed = Library("malloc-mixed", ("tinylib==1.0",), ("no-such-package-anywhere",), ("libtiny.so", "libm.so.6"))
    prepared = LocalEngine(places).prepare(IMAGE, (mixed,), said)
    folder = Path(prepared.libraries["malloc-mixed"])
    assert (folder / "libtiny.so").read_bytes() == b"\x7fELF first"
    assert (folder / "libm.so.6").resolve().is_file()


def prepare_elsewhere(places: BuildPaths, results: multiprocessing.Queue[str]) -> None:
    said = Said()
    prepared = LocalEngine(places).prepare(IMAGE, LIBRARIES, said)
    results.put(f"{prepared.reference} {sum('building a venv' in line for line in said)}")


def test_concurrent_builders_build_one_venv_between_them(places: BuildPaths, wheels: Path, said: Said) -> None:
    Locks(places.locks, places.cache, said).make([IMAGE], LIBRARIES)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    builders = [context.Process(target=prepare_elsewhere, args=(places, results)) for _ in range(4)]
    for builder in builders:
        builder.start()
    lines = [results.get(timeout=300).rsplit(" ", 1) for _ in builders]
    assert len({reference for reference, _ in lines}) == 1
    assert sum(int(built) for _, built in lines) == 1


def test_a_second_venv_costs_a_tenth_of_the_first_at_most(places: BuildPaths, wheels: Path, said: Said) -> None:
    body = {f"bulk/m{number}.py": b"x = 1\n" * 20_000 for number in range(60)}
    write_wheel(wheels, "bulk", "1.0", body)
    engine = LocalEngine(places)
    engine.prepare(Image("one", requirements=("bulk==1.0",)), (), said)
    before = usage(places.cache.root)
    engine.prepare(Image("two", requirements=("bulk==1.0", "tinypkg==1.0")), (), said)
    assert usage(places.cache.root) - before < before / 10


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder to mount on; it is unmounted afterwards."""
    place = tmp_path / "mount"
    place.mkdir()
    yield place
    subprocess.run(["umount", place], capture_output=True, check=False)


def mount(place: Path, options: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("a small file system cannot be mounted without root")


def test_a_full_disk_is_one_clear_error_and_leaves_nothing_half_built(
    places: BuildPaths, wheels: Path, said: Said, mounted: Path
) -> None:
    mount(mounted, "size=3m")
    write_wheel(wheels, "bulky", "1.0", {"bulky/data.bin": os.urandom(2 * 2**20)})
    (mounted / "tools").symlink_to(places.cache.root / "tools")
    engine = LocalEngine(replace(places, cache=Cache(mounted)))
    with pytest.raises(EngineError, match=r"(?i)no space left on device") as refused:
        engine.prepare(Image("bulky", requirements=("bulky==1.0",)), (), said)
    assert "ENVMATRIX_CACHE" in refused.value.remedy
    assert list((mounted / "scratch").iterdir()) == []
    assert not list(mounted.glob("venvs/*")), "a half-built venv was left"


def test_a_read_only_cache_is_one_clear_error(places: BuildPaths, wheels: Path, said: Said, mounted: Path) -> None:
    mount(mounted, "size=1m,ro")
    with pytest.raises(EngineError) as refused:
        LocalEngine(replace(places, cache=Cache(mounted))).prepare(IMAGE, (), said)
    assert "ENVMATRIX_CACHE" in refused.value.remedy

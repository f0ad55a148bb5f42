"""Packages without a wheel, built by the real pip and uv from a source distribution of a few bytes."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from envmatrix.build.cache import Cache, file_digest
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.build.python.interpreters import find_python_cached
from envmatrix.build.python.source_builds import fetch_wheels
from envmatrix.engines.local import LocalEngine
from envmatrix.errors import EngineError, ExitCode, InputError, SkipEnvironmentError
from envmatrix.plan.environment import Image, SourceBuild
from tests.engines.conftest import Said

pytestmark = pytest.mark.local

#: A build backend (PEP 517) that imports an installed package, as Horovod's build imports torch.
BACKEND = """
import os, time, zipfile
INFO = "tinyext-1.0.dist-info"
META = "Metadata-Version: 2.1\\nName: tinyext\\nVersion: 1.0\\nRequires-Dist: tinypkg\\n"

def prepare_metadata_for_build_wheel(folder, settings=None):
    os.mkdir(os.path.join(folder, INFO))
    open(os.path.join(folder, INFO, "METADATA"), "w").write(META)
    return INFO

def build_wheel(folder, settings=None, metadata=None):
    import tinypkg
    if os.environ.get("TINY_MODE") == "broken":
        raise SystemExit("tiny.c:3: error: expected a semicolon")
    said = [tinypkg.VERSION, os.environ.get("TINY_MODE"), open("level.txt").read(), os.environ.get("LEAKED")]
    members = {
        "tinyext.py": f"SAID = {said!r}\\n",
        INFO + "/METADATA": META,
        INFO + "/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    members[INFO + "/RECORD"] = "".join(f"{name},,\\n" for name in [*members, INFO + "/RECORD"])
    when = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    with zipfile.ZipFile(os.path.join(folder, "tinyext-1.0-py3-none-any.whl"), "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, when), text)
    return "tinyext-1.0-py3-none-any.whl"
"""
FILES = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: tinyext\nVersion: 1.0\n",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
    "level.txt": "standard 14",
}
BUILD = SourceBuild("tinyext", (("TINY_MODE", "fast"),), (("level.txt", "14", "17"),), ("tar",))
IMAGE = Image("built", requirements=("tinypkg==1.0", "tinyext==1.0"), builds=(BUILD,))


@pytest.fixture
def source(wheels: Path) -> Path:
    """Write the source distribution next to the wheels that pip finds, and return it."""
    file = wheels / "tinyext-1.0.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name, text in FILES.items():
            member = tarfile.TarInfo(f"tinyext-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return file


def said_by(python: str) -> str:
    argv = [python, "-c", "import tinyext; print(tinyext.SAID)"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def left_behind(places: BuildPaths) -> list[str]:
    """Return the files of a failed build that are left in the cache, without its log."""
    folders = [places.cache.root / name for name in ("built", "scratch")]
    return [str(path) for folder in folders if folder.exists() for path in folder.iterdir() if path.suffix != ".log"]


def test_a_package_is_built_once_against_its_environment_as_matrix_yaml_says(
    places: BuildPaths, source: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKED", "from the host")
    prepared = LocalEngine(places).prepare(IMAGE, (), said)
    assert said_by(prepared.python) == "['1.0', 'fast', 'standard 17', None]"
    assert f"from source sha256:{file_digest(source)}" in prepared.facts["built tinyext"]
    assert "tar" in prepared.facts["built tinyext"]
    assert prepared.facts["package tinyext"] == "1.0"
    assert sorted(Path(path).suffix for path in left_behind(places)) == [""]  # the wheel's folder
    said.clear()
    again = LocalEngine(places).prepare(replace(IMAGE, name="other"), (), said)
    assert again.facts["built tinyext"] == prepared.facts["built tinyext"]
    assert not any("building tinyext" in line for line in said)


def test_the_lock_pins_the_source_itself_and_another_one_is_refused(
    places: BuildPaths, source: Path, said: Said
) -> None:
    lock = Locks(places.locks, places.cache, said).make([IMAGE], ())[0]
    assert "--no-binary=tinyext" in lock.read_text()
    assert f"tinyext==1.0 \\\n    --hash=sha256:{file_digest(source)}" in lock.read_text()
    lock.write_text(lock.read_text().replace(file_digest(source), "0" * 64))
    with pytest.raises(InputError, match=r"the sha256 of tinyext==1\.0 does not match") as refused:
        LocalEngine(places).prepare(IMAGE, (), said)
    assert refused.value.exit_code == ExitCode.BAD_INPUT


def test_two_caches_build_the_same_bytes_and_other_settings_other_ones(
    places: BuildPaths, source: Path, said: Said, tmp_path: Path
) -> None:
    def digest(root: Path, build: SourceBuild) -> str:
        root.mkdir(exist_ok=True)
        elsewhere = replace(places, cache=Cache(root))
        image = replace(IMAGE, builds=(build,))
        return LocalEngine(elsewhere).prepare(image, (), said).facts["built tinyext"].split()[1]

    first = digest(tmp_path / "one", BUILD)
    assert digest(tmp_path / "two", BUILD) == first
    assert digest(tmp_path / "one", replace(BUILD, env=(("TINY_MODE", "slow"),))) != first


def test_a_missing_program_skips_the_environment_with_what_to_install(
    places: BuildPaths, source: Path, said: Said
) -> None:
    image = replace(IMAGE, builds=(replace(BUILD, programs=("tar", "no-such-compiler")),))
    with pytest.raises(SkipEnvironmentError, match="needs no-such-compiler, which is not installed") as refused:
        LocalEngine(places).prepare(image, (), said)
    assert "apt-get install no-such-compiler" in refused.value.remedy
    assert refused.value.exit_code == ExitCode.NOTHING_RAN
    assert left_behind(places) == []


def test_a_build_that_breaks_tells_the_compiler_s_words_and_leaves_nothing(
    places: BuildPaths, source: Path, said: Said
) -> None:
    image = replace(IMAGE, builds=(replace(BUILD, env=(("TINY_MODE", "broken"),)),))
    with pytest.raises(EngineError, match=r"tiny\.c:3: error: expected a semicolon") as refused:
        LocalEngine(places).prepare(image, (), said)
    assert "could not build tinyext==1.0 from source" in refused.value.message
    assert refused.value.exit_code == ExitCode.NOTHING_RAN
    log = refused.value.remedy.split()[1].rstrip(",;")
    assert "tiny.c:3" in Path(log).read_text()
    assert left_behind(places) == []
    assert said_by(LocalEngine(places).prepare(IMAGE, (), said).python).startswith("['1.0', 'fast'")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("level.txt", "standard 11", "x"), "does not contain 'standard 11'"),
        (("absent.txt", "14", "17"), "has no text file absent.txt"),
    ],
)
def test_an_edit_that_does_not_fit_the_source_is_a_mistake_of_matrix_yaml(
    places: BuildPaths, source: Path, said: Said, edit: tuple[str, str, str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        LocalEngine(places).prepare(replace(IMAGE, builds=(replace(BUILD, edit=(edit,)),)), (), said)
    assert left_behind(places) == []


def test_a_python_that_is_not_here_cannot_build(places: BuildPaths, source: Path, said: Said) -> None:
    python = find_python_cached(places.cache, None)
    locked = Locks(places.locks, places.cache, said).image_lock(IMAGE, python)
    absent = replace(python, target="3.13", tag="cp313-linux_x86_64")
    with pytest.raises(SkipEnvironmentError, match=r"this needs Python 3\.13 on this machine"):
        fetch_wheels(places.cache, IMAGE, locked, absent, said)
    with pytest.raises(SkipEnvironmentError, match=r"this needs Python 3\.13 on this machine"):
        Locks(places.locks, places.cache, said).image_lock(IMAGE, absent)

"""Packages of another architecture, with the real pip and apt; Arm's allocators in an emulated process."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from envmatrix.build.cache import Cache
from envmatrix.build.debian.packages import Apt, lock_name_of_distribution
from envmatrix.build.libraries import LibraryBuilder, fetch_packages
from envmatrix.build.lockfile import read_lock
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.build.python.interpreters import find_python_cached
from envmatrix.plan.environment import Image, Library, all_libraries
from envmatrix.system import resource_paths
from tests import shipped_levels
from tests.engines.conftest import Said, write_wheel

pytestmark = pytest.mark.local

HERE = platform.machine()
ELSEWHERE = "aarch64" if HERE == "x86_64" else "x86_64"
QEMU = shutil.which("qemu-aarch64-static")
#: What Debian's Python needs to start; its version is that of the suite.
PYTHON = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libexpat1", "zlib1g",
          "libffi8", "libgcc-s1", "libstdc++6", "libunwind8", "liblzma5")  # fmt: skip
EVIDENCE = """
import json
from bench.evidence import machine, malloc
print(json.dumps({"malloc": malloc.collect(), "architecture": machine.cpu()["architecture"]}))
"""


def write_platform_wheel(folder: Path, name: str, version: str, architecture: str, needs: str = "") -> None:
    """Write a wheel for one architecture."""
    file = write_wheel(folder, name, version, {f"{name}.py": architecture.encode()}, needs)
    file.rename(folder / f"{name}-{version}-py3-none-manylinux_2_28_{architecture}.whl")


def test_another_architecture_gets_its_own_wheels_and_what_these_need_there(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    needs = f"onlythere; platform_machine == '{ELSEWHERE}'\nRequires-Dist: onlyhere; platform_machine == '{HERE}'"
    for architecture in (HERE, ELSEWHERE):
        write_platform_wheel(wheels, "native", "1.0", architecture, needs)
    for name in ("onlythere", "onlyhere"):
        write_wheel(wheels, name, "1.0", {f"{name}.py": b""})
    locks, image = Locks(places.locks, places.cache, said), Image("tiny", requirements=("native==1.0",))
    pinned = {}
    for architecture in (HERE, ELSEWHERE):
        lock = read_lock(locks.make([image], (), architecture)[0])
        assert lock.path.name.endswith(f"linux_{architecture}.txt")
        pinned[architecture] = {pin.name: pin.sha256 for pin in lock.sections[0].packages}
    assert set(pinned[HERE]) == {"native", "onlyhere"}
    assert set(pinned[ELSEWHERE]) == {"native", "onlythere"}
    assert pinned[HERE]["native"] != pinned[ELSEWHERE]["native"]


def test_what_cannot_be_locked_for_another_architecture_is_said_and_the_old_lock_stays(
    places: BuildPaths, wheels: Path, said: Said
) -> None:
    write_platform_wheel(wheels, "native", "1.0", ELSEWHERE)
    locks, library = Locks(places.locks, places.cache, said), Library("malloc-x", ("native==1.0",), (), ("libx.so",))
    (file,) = locks.make([], [library], ELSEWHERE)
    before = file.read_text()
    next(wheels.glob(f"native*{ELSEWHERE}.whl")).unlink()
    locks.make([], [library], ELSEWHERE)
    assert file.read_text() == before
    assert any(line.startswith(f"not locked for {ELSEWHERE}: malloc-x: pip could not resolve") for line in said)
    nowhere = Image("tiny", requirements=("native==1.0",), index=("http://127.0.0.1:9/whl/cpu",))
    assert locks.make([nowhere], (), ELSEWHERE) == []
    assert f"not locked for {ELSEWHERE}: tiny: http://127.0.0.1:9/whl/cpu is unreachable" in said


@pytest.fixture(scope="module")
def arm_root(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Apt]:
    """Return a folder with Debian's Python for arm64, and the packages of that architecture."""
    if HERE != "x86_64" or QEMU is None:
        pytest.skip("needs x86-64 with qemu-aarch64-static (apt-get install qemu-user-static)")
    name = lock_name_of_distribution("aarch64")
    if name != "debian-bookworm-aarch64":
        pytest.skip("needs Debian bookworm, whose packages the committed lock has")
    root, cache = tmp_path_factory.mktemp("arm64"), Cache(resource_paths.cache_folder())
    apt = Apt(cache, name, architecture="aarch64")
    for file in fetch_packages(cache, apt, [apt.find(one) for one in PYTHON], Said()):
        subprocess.run(["dpkg-deb", "--extract", file, root], check=True)
    return root, apt


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("level", "version"), [("jemalloc", "5.3."), ("mimalloc-3", "3.")])
def test_an_arm_process_has_the_allocator_of_the_committed_lock(
    arm_root: tuple[Path, Apt], level: str, version: str
) -> None:
    """User-mode QEMU runs Debian's arm64 Python, with the library of an arm64 package and of a wheel."""
    root, apt = arm_root
    cache = apt.cache
    library = [one for one in all_libraries(shipped_levels.matrix()) if one.key == f"malloc-{level}"]
    builder = LibraryBuilder(
        Locks(resource_paths.bundled_package_locks(), cache, print),
        find_python_cached(cache, None).for_architecture("aarch64"),
        apt,
    )
    built = builder.build(library, Image("any"))
    assert not built.missing
    files = [f"{built.folders[one.key]}/{file}" for one in library for file in one.files]
    argv = [
        str(QEMU),
        "-L",
        str(root),
        "-E",
        f"LD_PRELOAD={':'.join(files)}",
        str(root / "usr/bin/python3.11"),
        "-S",
        "-c",
        EVIDENCE,
    ]
    variables = {
        "PYTHONPATH": str(resource_paths.bench_folder().parent),
        "PYTHONHOME": str(root / "usr"),
        "PATH": os.defpath,
    }
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["architecture"] == "aarch64"
    assert seen["malloc"]["library"] == f"lib{level.partition('-')[0]}"
    assert seen["malloc"]["version"].startswith(version)

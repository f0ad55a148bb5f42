"""Engine podman of an ordinary user, who is made for these tests: no service runs, and no root helps."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envmatrix.build.paths import BuildPaths
from envmatrix.engines.podman import PodmanEngine
from tests.engines.conftest import IMAGE, Said, demand, use_podman

pytestmark = [pytest.mark.podman, pytest.mark.timeout(900)]
CHECKOUT = Path(__file__).parents[2]
MATRIX = """
version: 2
factors:
  image: {mine: {image: image.tar}}
  malloc:
    plain: {}
    tuned:
      env: {GLIBC_TUNABLES: "glibc.malloc.mmap_threshold=1073741824"}
      claims: {malloc: libc, malloc.options.mmap_threshold: ">= 1073741824"}
environments: {baseline: {}, tuned: {malloc: tuned}}
workloads: {own: {command: [python3, train.py], metric: {regex: '([0-9.]+) it/s', better: higher}, files: program}}
designs:
  default: {environments: tuned, workloads: own, max_blocks: 1}
  pinned: {environments: tuned, workloads: own, max_blocks: 1, cpus: "0"}
"""
TRAIN = "import os\nopen('written', 'w').close()\nprint('7.5 it/s', os.getuid())\n"


@dataclass(frozen=True)
class User:
    """A user with a home, where a program, a matrix and an image are."""

    number: int
    home: Path
    python: str = ""

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, with a clean environment, in the home."""
        variables = {
            "HOME": str(self.home), "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(self.home / "run"),
            "PYTHONPATH": f"{CHECKOUT}:{sysconfig.get_path('purelib')}", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        return subprocess.run(
            argv, cwd=self.home, env=variables, user=self.number, group=self.number, extra_groups=[],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def envmatrix(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-m", "envmatrix", *words)

    def processes(self) -> list[int]:
        """Return the processes of this user."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == self.number:
                    found.append(int(folder.name))
        return found


def python_of(user: User) -> str:
    """Return a Python of our version that a user can start. Skips if ours is below /root and there is no other."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        with contextlib.suppress(OSError):
            if user.run(python, "-c", "import envmatrix, docker").returncode == 0:
                return python
    pytest.skip("a new user can start no Python of this version")


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """Yield a new user whose Podman works. Skips if none can be made here."""
    if os.geteuid() or not shutil.which("useradd") or not shutil.which("podman"):
        pytest.skip("needs root, useradd and podman")
    name, home = f"envmatrix-{secrets.token_hex(4)}", Path(tempfile.mkdtemp(prefix="envmatrix-user-", dir="/var/tmp"))
    subprocess.run(["useradd", "--home-dir", home, "--shell", "/bin/sh", name], check=True)
    account = pwd.getpwnam(name)
    made = User(account.pw_uid, home)
    try:
        (home / "run").mkdir(mode=0o700)
        (home / ".config" / "containers").mkdir(parents=True)
        (home / ".config" / "containers" / "storage.conf").write_text('[storage]\ndriver = "overlay"\n')
        for path in (home, *home.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
        done = made.run("podman", "info")
        if done.returncode:
            pytest.skip(f"`podman info` of a new user: {done.stderr.strip().splitlines()[-1]}")
        yield replace(made, python=python_of(made))
    finally:
        for pid in made.processes():
            os.kill(pid, signal.SIGKILL)
        subprocess.run(["userdel", name], check=True)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def archive(user: User, ground: BuildPaths) -> str:
    """Return the name of an archive of a small image in the user's home, beside a matrix and a program."""
    with pytest.MonkeyPatch.context() as patch:
        use_podman(patch)
        engine = PodmanEngine(ground)
        demand(engine.unavailable())
        engine.save(engine.prepare(IMAGE, (), Said()), user.home / "image.tar")
    (user.home / "matrix.yaml").write_text(MATRIX)
    (user.home / "program").mkdir()
    for file in (user.home / "train.py", user.home / "program" / "train.py"):
        file.write_text(TRAIN)
    for path in user.home.glob("*.*"):
        os.chown(path, user.number, user.number)
    return "image.tar"


def test_a_user_without_root_runs_a_command_in_an_image_and_owns_what_it_writes(user: User, archive: str) -> None:
    done = user.envmatrix("exec", "tuned", "--engine", "podman", "--image", archive, "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "7.5 it/s 0\n", "the user inside is root"
    assert (user.home / "written").stat().st_uid == user.number


def test_a_user_without_root_benchmarks_a_program_with_verified_evidence(user: User, archive: str) -> None:
    done = user.envmatrix("bench", "--engine", "podman", "--name", "own")
    assert done.returncode == 0, done.stderr
    lines = (user.home / "results" / "own" / "trials.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    assert [(trial["outcome"], trial["engine"]) for trial in trials] == [("ok", "podman")] * 3, lines
    left = user.run("podman", "ps", "--all", "--quiet")
    assert (left.returncode, left.stdout) == (0, ""), left.stderr


def test_a_limit_that_podman_would_ignore_for_a_user_is_refused_with_what_to_type(user: User, archive: str) -> None:
    info = json.loads(user.run("podman", "info", "--format", "json").stdout)
    if "cpuset" in (info["host"]["cgroupControllers"] or []):
        pytest.skip("this user may set CPU sets")
    done = user.envmatrix("bench", "pinned", "--engine", "podman", "--name", "pinned")
    assert done.returncode, done.stdout
    assert "your user may not use these controllers of control groups: cpuset" in done.stderr
    assert "Delegate=" in done.stderr

"""A trial sees the program's folder as it is, at its own path, and what it writes there is caught."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.block.program_overlay import overlay_root_or_reason, remove_folder
from envmatrix.matrix.model import Workload
from envmatrix.trials.user_program.invocation import report_linked_folders

NOBODY = 65534
#: Runs the words from argv[5] on in argv[1], works in argv[2], and leaves out the old metric argv[3].
DRIVER = """
import json, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from envmatrix.block.program_overlay import overlay_root_or_reason, make_overlay, remove_folder
from envmatrix.block.process import Order, SupervisedProcess
folder, work, metric = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
overlay = make_overlay(folder, work, metric)
said = {"root": overlay and overlay.root, "reason": overlay_root_or_reason(folder, work.parent)[1]}
if overlay:
    order = Order(sys.argv[5:], {"PATH": "/usr/bin:/bin"}, folder, 60, overlay=overlay)
    with SupervisedProcess(order, (subprocess.DEVNULL, 2, 2)) as process:
        (work / "supervisor").write_text(str(process.process.pid))
        said["code"] = process.answer().code
print(json.dumps(said))
"""
PACKAGE = Path(__file__).parents[2]


class Person:
    """Somebody with a program's folder in a folder that has blanks, commas and colons in its name."""

    def __init__(self, place: Path, user: int) -> None:
        self.user, self.above = user, place / "a b, c:d"
        self.folder, self.work = self.above / "pro\\ject", place / "scratch" / "trial"
        for path in (self.folder / "src", self.folder / "sealed", self.above / "data", self.work):
            path.mkdir(parents=True)
        (self.above / "data" / "x.bin").write_bytes(b"x" * 1000)
        (self.folder / "src" / "mine.py").write_text("mine\n")
        (self.folder / "old.json").write_text("1")
        (self.folder / "link").symlink_to("src/mine.py")
        (self.folder / "sealed").chmod(0o555)
        (self.folder / "sealed" / "x").write_text("x") if user == 0 else None
        python = next(python for python in (sys.executable, "/usr/bin/python3") if self._starts(python))
        self.driver = [python, "-I", "-B", "-c", DRIVER]
        if user != os.geteuid():
            for path in (place, *place.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
            for path in place.parents[:-1]:
                if path != Path("/tmp"):
                    path.chmod(path.stat().st_mode | 0o055)

    def give(self, folder: Path) -> None:
        """Make a folder of this person."""
        folder.mkdir()
        os.chown(folder, *(self.user, self.user) if self.user != os.geteuid() else (-1, -1))

    def _starts(self, python: str) -> bool:
        try:
            return subprocess.run([python, "-c", ""], **self._user(), check=False).returncode == 0
        except OSError:
            return False

    def _user(self) -> dict:
        return {} if self.user == os.geteuid() else {"user": self.user, "group": self.user, "extra_groups": []}

    def start(self, script: str, metric: str = "", before: tuple = ()) -> subprocess.Popen:
        arguments = [self.folder, self.work, metric, PACKAGE, "/bin/sh", "-ec", script, "sh", self.folder, self.work]
        words = [*before, *self.driver, *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(list(map(str, words)), cwd="/", **streams, **self._user())

    def run(self, script: str, metric: str = "", before: tuple = ()) -> dict:
        with self.start(script, metric, before) as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        said = json.loads(out)
        if not before and not said["root"] and "refuses" in said["reason"]:
            pytest.skip(said["reason"])
        return {**said, "stderr": err}

    def digest(self) -> str:
        """Return a digest of every name, mode, time and content."""
        seen = []
        for path in sorted(self.above.rglob("*")):
            status = path.lstat()
            text = path.read_bytes() if path.is_file() else b""
            seen.append((str(path), status.st_mode, status.st_uid, status.st_mtime_ns, status.st_ino, text))
        return hashlib.sha256(repr(seen).encode()).hexdigest()


@pytest.fixture(params=["as I am", "as nobody"])
def person(request, tmp_path):
    if request.param == "as I am":
        yield Person(tmp_path, os.geteuid())
        return
    if os.geteuid():
        pytest.skip("only root can become nobody")
    try:
        yield Person(tmp_path, NOBODY)
    except StopIteration:
        pytest.skip("nobody can start no Python here")


def test_it_is_seen_as_it_is_and_nothing_of_the_users_changes_whatever_the_program_does(person):
    before = person.digest()
    script = """
        [ "$(pwd)" = "$1" ]; [ "$(wc -c <../data/x.bin)" = 1000 ]; [ "$(cat link)" = mine ]
        [ ! -e new ]; echo new >new; echo more >>src/mine.py; mkdir -p made/deep; chmod 500 made
        mv src/mine.py moved; echo x >old.json; rm -rf "$1" || true; [ ! -e src ]
    """
    for _ in range(2):  # each trial starts from the same state
        said = person.run(script)
        assert (said["root"], said["code"]) == (str(person.folder), 0), said["stderr"]
        assert person.digest() == before
        remove_folder(person.work)
        person.give(person.work)


def test_a_repository_is_caught_whole_and_an_old_metric_is_absent(person):
    person.give(person.above / ".git")
    before = person.digest()
    said = person.run(
        "[ ! -e old.json ]; echo 2 >old.json; mkdir ../out; echo x >../out/y; rm ../data/x.bin", "old.json"
    )
    assert (said["root"], said["code"]) == (str(person.above), 0), said["stderr"]
    assert person.digest() == before


def test_a_record_arrives_if_trials_work_inside_the_programs_folder(person):
    person.work = person.folder / "results" / "trial"
    person.give(person.work.parent)
    person.give(person.work)
    said = person.run('echo done >"$2/record"')
    assert said["code"] == 0, said["stderr"]
    assert (person.work / "record").read_text() == "done\n"
    assert not (person.work / ".overlay" / "upper" / "results").exists()


def test_its_processes_end_with_their_supervisor(person):
    process = person.start('echo $$ >"$2/pid"; exec sleep 50')
    pid, supervisor = person.work / "pid", person.work / "supervisor"
    while not (pid.exists() and pid.read_text().strip() and supervisor.exists() and supervisor.read_text()):
        if process.poll() is not None:
            pytest.skip(json.loads(process.stdout.read())["reason"])
        time.sleep(0.02)
    os.kill(int(supervisor.read_text()), 9)
    process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid.read_text().strip()}").exists():
        assert time.monotonic() < deadline, "it outlived its supervisor"
        time.sleep(0.02)


def test_a_system_that_gives_no_namespaces_is_named(tmp_path):
    limits = 'for limit in user mnt; do echo 0 >/proc/sys/user/max_${limit}_namespaces; done; exec "$@"'
    before = ("unshare", "--user", "--map-root-user", "sh", "-c", limits, "sh")
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system has no user namespaces")
    said = Person(tmp_path, os.geteuid()).run(":", before=before)
    assert said["root"] is None
    assert said["reason"].endswith("(its limit on namespaces is reached)")


@pytest.mark.parametrize("folder", ["/", "/proc", str(Path.home())])
def test_a_folder_of_the_system_and_a_home_are_not_covered(folder, tmp_path):
    root, reason = overlay_root_or_reason(Path(folder), tmp_path)
    assert root == ""
    assert reason


def test_files_of_others_are_not_covered_without_privileges(tmp_path):
    if os.geteuid():
        pytest.skip("only root can make them")
    try:
        person = Person(tmp_path, NOBODY)
    except StopIteration:
        pytest.skip("nobody can start no Python here")
    os.chown(person.folder / "old.json", 0, 0)
    assert "belong to another user or group" in person.run(":")["reason"]


def test_links_are_reported_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path))
    workload = Workload(name="mine", command=("a",), files=str(Path.home()))
    lines = []
    report_linked_folders([workload], [SimpleNamespace(starts_anywhere=True)], lines.append)
    assert len(lines) == 1
    assert "trials of mine run in a folder of links" in lines[0]
    report_linked_folders([workload], [SimpleNamespace(starts_anywhere=False)], lines.append)
    assert len(lines) == 1


def test_a_script_outside_its_folder_is_reported_as_what_it_writes_there_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "envmatrix.trials.user_program.invocation.overlay_root_or_reason", lambda folder, _: (str(folder), "")
    )
    for folder in ("mine", "runs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").touch()
    lines = []
    for folder in ("mine", "runs"):
        command = ("python", str(tmp_path / "mine" / "train.py"), "/etc/hosts", "--lr", "0.1")
        workload = Workload(name="train", command=command, files=str(tmp_path / folder))
        report_linked_folders([workload], [SimpleNamespace(starts_anywhere=True)], lines.append)
    (line,) = lines
    assert f"{tmp_path}/mine/train.py is outside {tmp_path}/runs" in line

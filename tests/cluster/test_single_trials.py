"""``exec`` and ``evidence`` on other machines: one trial of a launcher, of which nothing is left."""

import json
import os
import signal
import sys
import time

import pytest

from envmatrix.engines.catalog import find_engine
from envmatrix.plan.environment import Image
from tests.cluster.conftest import Project
from tests.cluster.test_gridengine import GRID
from tests.cluster.test_slurm import SLURM, needs_apptainer
from tests.cluster.test_ssh import SSH
from tests.engines.conftest import write_wheel

pytestmark = [pytest.mark.timeout(600)]
LAUNCHERS = {"ssh": ("hosts", SSH), "slurm": ("cluster", SLURM), "gridengine": ("grid", GRID)}
#: A program that a trial of any run can start.
PROGRAM = """
import os, sys
open("written", "w").write("by the program")
print(os.environ["OMP_NUM_THREADS"], sys.argv[1], flush=True)
os.kill(os.getpid(), 9) if sys.argv[1] == "dies" else sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(params=LAUNCHERS)
def project(request, tmp_path):
    """A project with a program, and the words of a launcher (``words``)."""
    daemons, words = LAUNCHERS[request.param]
    made = Project(tmp_path / "pro ject", request.getfixturevalue(daemons))
    made.words = words
    (made.folder / "train.py").write_text(PROGRAM)
    yield made
    if hasattr(made.cluster, "clean"):
        made.cluster.clean()


def nothing_is_left(project):
    project.wait_for(lambda: not project.left(), 60)
    return not [*(project.folder / "results").iterdir()]


def test_a_command_on_a_node_writes_here_and_its_output_and_its_exit_code_are_ours(project):
    for argument, code in (("0", 0), ("9", 9), ("dies", 137)):
        done = project.run("exec", "one-thread", *project.words, "--limit", "5m", "--", "python", "train.py", argument)
        assert (done.returncode, done.stdout) == (code, f"1 {argument}\n"), done.stderr
    assert "one-thread: it ran on " in done.stderr
    assert (project.folder / "written").read_text() == "by the program"
    late = project.run("exec", "one-thread", *project.words, "--limit", "1s", "--", "sleep", "60")
    assert late.returncode == 124, late.stderr
    missing = project.run("exec", "one-thread", *project.words, "--limit", "5m", "--", "no-such-program")
    assert missing.returncode == 127, missing.stderr
    assert nothing_is_left(project)


def test_the_evidence_of_a_node_is_compared_with_the_checks(project):
    (project.folder / "train.py").write_text(f"import torch\n{PROGRAM}")
    text = (project.folder / "matrix.yaml").read_text()
    wrong = "two: {env: {OMP_NUM_THREADS: 2}, claims: {threads: 1}}}\nenvironments:\n  wrong: {threads: two}\n"
    (project.folder / "matrix.yaml").write_text(text.replace("}\nenvironments:\n", f", {wrong}", 1))
    done = project.run("evidence", "one-thread", *project.words)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "one-thread: 1 of 1 checks hold"), done.stderr
    seen = project.run("evidence", "one-thread", *project.words, "--json", "--", "python", "train.py", "0")
    assert seen.returncode == 0, seen.stderr
    assert json.loads(seen.stdout)["evidence"]["system"]
    assert not (project.folder / "written").exists(), "it runs as in a trial"
    failed = project.run("evidence", "wrong", *project.words)
    assert failed.returncode == 3, failed.stderr
    assert "FAILED  threads = 1, found 2" in failed.stdout
    broken = project.run("evidence", "one-thread", *project.words, "--", "python", "train.py", "9")
    assert broken.returncode == 2, broken.stderr
    assert "exit status 9" in broken.stderr
    assert nothing_is_left(project)


def test_ctrl_c_cancels_the_job(project):
    words = ("--", sys.executable, "programs/wait.py", str(project.held.folder), "3600")
    process = project.start("exec", "baseline", *project.words, "--limit", "1h", *words)
    project.wait_for(lambda: project.held.starts() == 1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    time.sleep(1)
    assert nothing_is_left(project)


@pytest.mark.parametrize("project", ["ssh"], indirect=True)
def test_an_environment_of_a_run_has_the_python_and_the_variables_of_its_program(project):
    (project.folder / "mine.py").write_text(
        "import os, sys\nprint(os.environ['MINE'], os.environ['HOME'], sys.prefix)\n"
    )
    options = ("--environments", "one-thread", "--name", "own", "--max-blocks", "1", "--pass-env", "MINE")
    done = project.run("bench", *options, "--", sys.executable, "mine.py", MINE="7")
    assert done.returncode == 0, done.stderr
    words = ("--run", "own", *project.words, "--limit", "5m", "--", "python", "mine.py")
    done = project.run("exec", "one-thread", *words, MINE="8")
    assert (done.returncode, done.stdout) == (0, f"8 {os.environ['HOME']} {sys.prefix}\n"), done.stderr


#: A program that shows what it has, and needs nothing but Python.
SHOWS = """
import os, sys
open("written", "w").write("by the program")
print("libjemalloc" in open("/proc/self/maps").read(), os.path.isdir("/.singularity.d"))
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("project", ["ssh", "slurm"], indirect=True)
def test_a_command_and_its_evidence_run_on_a_node_in_the_image_of_a_file(project, tmp_path, monkeypatch):
    needs_apptainer()
    write_wheel(tmp_path, "tinypkg", "1.0", {"tinypkg/__init__.py": b"VERSION = '1.0'\n"})
    for name, value in (("CONFIG_FILE", os.devnull), ("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(f"PIP_{name}", value)
    built = find_engine("apptainer").prepare(Image("plain", requirements=("tinypkg",)), (), print)
    (project.folder / "train.sif").symlink_to(built.reference)
    (project.folder / "matrix.yaml").write_text("version: 2\ninclude: envmatrix:malloc\nenvironments: {baseline: {}}\n")
    (project.folder / "train.py").write_text(SHOWS)
    options = ("jemalloc", *project.words, "--engine", "apptainer", "--image", "train.sif")
    for code in (0, 9):
        done = project.run("exec", *options, "--limit", "5m", "--", "python", "train.py", str(code))
        assert (done.returncode, done.stdout) == (code, "True True\n"), done.stderr
    assert not (project.folder / "written").exists(), "in a container it writes to a folder that is deleted"
    seen = project.run("evidence", *options, "--json", "--", "python", "train.py", "0")
    assert seen.returncode == 0, seen.stderr
    evidence = json.loads(seen.stdout)["evidence"]
    assert (evidence["malloc"]["library"], evidence["sandbox"]["root_read_only"]) == ("libjemalloc", True)
    assert nothing_is_left(project)

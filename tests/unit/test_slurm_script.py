"""The batch script of a block: its whole text, and its behaviour in a real shell without Slurm."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envmatrix.block.block_instructions import BlockOrder, Part, TrialOrder
from envmatrix.block.process import Place
from envmatrix.block.program_folder import MAX_COPIED_BYTES
from envmatrix.errors import InputError
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.block_start import copy_package
from envmatrix.launchers.slurm.script import BlockJob, block_script, script_with_order
from envmatrix.matrix import Slurm

ROOT = Path(__file__).parents[2]
HOSTILE = "a b'c\"d$HOME`id`;|&\\*é%j"


def step(trial, argv, limit_s=20.0, **more):
    return Part(trial, [TrialOrder(trial, f"env:work@local {HOSTILE}", argv, {"A": HOSTILE}, limit_s, **more)])


def job(folder, parts, attempt=1, options=None, package=Path("/shared/block-0"), **more):
    variables = {"PATH": os.environ["PATH"], "HOME": "/"}
    asked = Slurm.model_validate(options or {})
    busy = 1.0 if asked.busy is None else asked.busy
    order = BlockOrder("run r, block 3", str(folder), attempt, parts, busy)
    return BlockJob("envmatrix-0-b0003", order, package, asked, variables, **more)


def snapshot(name, text):
    """Compare a text with its snapshot; `UPDATE_SNAPSHOTS=1 pytest` rewrites it, for review with `git diff`."""
    file = Path(__file__).parent / "snapshots" / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def hostile_job(nodes):
    folder = "/shared/it's $here/b0003"
    trial = TrialOrder(
        "b0003-p000", "base:cnn@local", ["/venv/bin/python", "-m", "bench", "--x=a b"],
        {"LD_PRELOAD": "/l/x.so", "PAD": "x" * 40}, 300.0, ["HOME"], Place((0, 1)), ["/venv/bin/python", "/a b"], nodes,
    )  # fmt: skip
    asked = {"partition": "gpu", "gpus": "a100:2", "account": "me", "modules": "apptainer/1.4", "constraint": "a&b",
             "options": "--qos=high", "time": "90m", "memory": "8GiB"}  # fmt: skip
    return BlockJob(
        "envmatrix-0-b0003", BlockOrder("run r, block 3", folder, 2, [Part(trial.name, [trial])]),
        Path("/shared/it's $here/block-0"), Slurm.model_validate(asked),
        {"PATH": "/usr/bin:/bin", "HOME": "/home/o'neill"}, node="n1", avoid=("n1", "n7"),
    )  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_whole_script_is_as_recorded_and_a_shell_can_read_it(nodes):
    text = script_with_order(hostile_job(nodes))
    snapshot(f"block-on-{nodes}.sh", text.replace(shlex.quote(sys.executable), "/this/python"))
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b", "a\x1bb"])
def test_a_newline_is_refused_where_it_would_stand_in_the_script(tmp_path, text):
    for made in (job(tmp_path / text, []), job(tmp_path, [], package=tmp_path / text)):
        with pytest.raises(InputError, match="newline or another control character"):
            block_script(made)


class Shell:
    """Runs block scripts with a real sh in a folder with a hostile name."""

    def __init__(self, tmp_path):
        self.folder = tmp_path / HOSTILE
        self.files = BlockFolder(self.folder)

    def write(self, steps, attempt=None, **more):
        attempt = attempt or self.files.start_new_attempt()
        made = job(self.folder, steps, attempt, package=copy_package(self.folder.parent), **more)
        self.files.order(attempt).write_text(made.order.text())
        script = self.files.script(attempt)
        script.write_text(block_script(made))
        return script

    def start(self, script, node="n1", **more):
        return subprocess.Popen(
            ["sh", str(script)], start_new_session=True, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "SLURMD_NODENAME": node, "SLURM_JOB_ID": "7", **more},
        )  # fmt: skip

    def run(self, script, **more):
        return self.start(script, **more).wait(60)

    def step(self, trial, code, **more):
        return step(trial, [sys.executable, "-c", code], **more)


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)


def test_arguments_variables_and_folders_with_hostile_names_arrive_exactly(shell):
    code = "import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
    made = step("t1", [sys.executable, "-c", code, HOSTILE, ""])
    assert shell.run(shell.write([made])) == 0
    end = shell.files.end("t1")
    assert end.exit.ok
    argv, variables, cwd = json.loads((end.folder / "log").read_text())
    assert argv == [HOSTILE, ""]
    assert variables.pop("ENVMATRIX_TRIAL").startswith("job/7/")
    assert {k: v for k, v in variables.items() if k != "LC_CTYPE"} == {"A": HOSTILE}
    assert cwd == str(shell.folder / "t1.try1" / "work")
    assert end.node == "n1"
    assert abs(end.epoch - time.time()) < 100


def test_a_program_finds_its_files_beside_it_and_the_next_trial_does_not(shell, tmp_path):
    files = tmp_path / "my program's"
    (files / "data").mkdir(parents=True)
    for name in ("train.py", ".hidden", "a b", "out.json", "record.json"):
        (files / name).write_text(name)
    code = "import os; print(sorted(os.listdir()), end=''); open('made', 'w'); open('out.json', 'w').write('new')"
    first, second = shell.step("t1", code, program=[str(files), "/inside", "out.json"]), shell.step("t2", code)
    script = shell.write([first, second])
    assert shell.run(script) == 0
    seen = [(shell.files.end(name).folder / "log").read_text() for name in ("t1", "t2")]
    assert seen == [str([".hidden", "a b", "data", "train.py"]), "[]"]
    assert sorted(path.name for path in files.iterdir()) == [
        ".hidden", "a b", "data", "out.json", "record.json", "train.py",
    ]  # fmt: skip
    assert (files / "out.json").read_text() == "out.json", "the folder stays as it was"


@pytest.mark.parametrize("metric", ["out/x.json", "x.json"])
def test_a_program_writes_to_copies_and_its_metric_anew(shell, tmp_path, metric):
    files = tmp_path / "files"
    (files / "out" / "more").mkdir(parents=True)
    (files / "weights.pt").write_bytes(b"x" * (MAX_COPIED_BYTES + 1))
    for name in ("log.txt", "x.json", "out/x.json", "out/log.txt"):
        (files / name).write_text("old")
    folder = Path(metric).parent
    names = ["log.txt", metric, str(folder / "log.txt")]
    code = (
        f"import os; print(sorted(os.listdir({str(folder)!r})), os.path.exists({metric!r}), "
        f"os.path.islink('weights.pt')); [open(name, 'w').write('new') for name in {names!r}]"
    )
    made = shell.step("t1", code, program=[str(files), "/inside", metric])
    assert shell.run(shell.write([made])) == 0
    inside = ["log.txt", "more"] if "/" in metric else ["log.txt", "out", "weights.pt"]
    assert (shell.files.end("t1").folder / "log").read_text() == f"{inside} False True\n"
    assert {(files / name).read_text() for name in ("log.txt", "x.json", "out/x.json", "out/log.txt")} == {"old"}


def test_every_way_to_end_is_told_apart(shell):
    codes = {
        "good": "pass", "three": "raise SystemExit(3)", "killed": "import os; os.kill(os.getpid(), 9)",
        "endless": "import time; time.sleep(600)",
    }  # fmt: skip
    steps = [shell.step(name, code, limit_s=1.0 if name == "endless" else 20.0) for name, code in codes.items()]
    assert shell.run(shell.write(steps)) == 0
    ends = {name: shell.files.end(name).exit for name in codes}
    assert (ends["good"].code, ends["three"].code, ends["killed"].code) == (0, 3, -signal.SIGKILL)
    assert ends["endless"].timed_out
    assert not ends["killed"].timed_out
    assert 0.9 < ends["endless"].wall_s < 100


LEAVES = """
import os, signal, subprocess, sys
file = sys.argv[1] + "/left"
if os.path.exists(file):
    print("still runs", os.path.exists(f"/proc/{open(file).read()}/exe"), flush=True)
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(file, "w").write(str(daemon.pid))
if sys.argv[2] == "alone": os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("how", "before"), [("supervised", [0, 0]), ("alone", [0, 1])])
def test_what_a_trial_leaves_running_is_ended_before_the_next_and_at_the_end(shell, tmp_path, how, before):
    (tmp_path / "leaves.py").write_text(LEAVES)
    steps = [step(name, [sys.executable, str(tmp_path / "leaves.py"), str(tmp_path), how]) for name in ("t1", "t2")]
    assert shell.run(shell.write(steps)) == 0
    assert [shell.files.end(name).before for name in ("t1", "t2")] == before
    assert (shell.files.end("t2").folder / "log").read_text() == "still runs False\n"
    assert not Path("/proc", (tmp_path / "left").read_text(), "exe").exists()


def test_a_script_started_again_repeats_no_finished_trial(shell):
    count = "open('/dev/stdout','w').write('ran')"
    script = shell.write([shell.step("t1", count), shell.step("t2", count)])
    assert shell.run(script) == 0
    assert shell.run(script, SLURM_RESTART_COUNT="1") == 0
    assert [start.trial for start in shell.files.starts()] == ["t1", "t2"]


def test_a_script_that_is_ended_while_a_trial_runs_leaves_that_trial_unfinished(shell):
    running = shell.folder / "running"
    code = f"import time; open({str(running)!r}, 'w'); time.sleep(600)"
    process = shell.start(shell.write([shell.step("t1", "pass"), shell.step("t2", code, limit_s=600.0)]))
    deadline = time.monotonic() + 100
    while not running.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(shell.files.starts()) == 2
    session = subprocess.run(
        ["ps", "-o", "pid=", "--sid", str(process.pid)], capture_output=True, text=True, check=True
    )
    for pid in map(int, session.stdout.split()):  # as slurmd does: every process of the job, including the shell
        with contextlib.suppress(ProcessLookupError):  # one of them may end with another
            os.kill(pid, signal.SIGTERM)
    assert process.wait(100) == 143
    assert shell.files.end("t1").exit.ok
    assert shell.files.end("t2") is None
    assert shell.files.losses("t2") == 1
    shell.files.note_end(1, "PREEMPTED", excused=True)
    assert shell.files.losses("t2") == 0


def test_a_superseded_attempt_stops_before_its_next_trial(shell):
    old = shell.write([shell.step("t1", "pass")])
    new = shell.write([shell.step("t1", "pass")])
    assert shell.run(old) == 0
    assert shell.files.end("t1") is None
    assert shell.run(new) == 0
    assert shell.files.end("t1").exit.ok


def test_a_block_that_comes_up_on_another_node_stops_and_says_so(shell):
    script = shell.write([shell.step("t1", "pass"), shell.step("t2", "pass")])
    shell.files.path.joinpath("node").write_text("n1\n")
    assert shell.run(script, node="n2") == 75
    assert shell.files.stop_status_node_and_path(1) == (75, "n2", "")
    assert shell.files.starts() == []


def test_a_trial_that_fails_when_its_image_is_gone_is_none_and_runs_again_where_it_is_there(shell, tmp_path):
    image = tmp_path / "an image"
    image.touch()
    body = ["sh", "-c", f"rm '{image}' && exit $0"]

    def steps(status):
        return [step(name, [*body, status], needs=[str(image)], keep=["PATH"]) for name in ("t1", "t2")]

    assert shell.run(shell.write(steps("127"))) == 69
    assert shell.files.stop_status_node_and_path(1) == (69, "n1", str(image))
    assert ([start.trial for start in shell.files.starts()], shell.files.end("t1")) == (["t1"], None)
    image.touch()
    assert shell.run(shell.write(steps("0"))) == 69, "the first ended well, and without its image the second cannot"
    assert (shell.files.end("t1").exit.ok, shell.files.end("t2")) == (True, None)


def test_a_file_the_node_does_not_see_stops_the_job_before_any_trial(shell):
    needs = ["/nonexistent/a b/python"]
    script = shell.write([step("t1", ["true"], needs=needs)])
    assert shell.run(script) == 69
    assert shell.files.stop_status_node_and_path(1) == (69, "n1", "/nonexistent/a b/python")


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_cannot_be_written_for_a_moment_is_waited_for(shell):
    script = shell.write([shell.step("t1", "pass")])
    in_the_way, log = shell.folder / "starts", shell.folder / "job-1.log"
    in_the_way.mkdir()
    process = shell.start(script)
    wait_until(lambda: process.poll() is not None or (log.exists() and "is tried again" in log.read_text()))
    in_the_way.rmdir()
    assert process.wait(30) == 0
    assert shell.files.end("t1").exit.ok
    assert [start.trial for start in shell.files.starts()] == ["t1"]


def test_a_trial_that_broke_when_its_folder_could_not_be_written_by_its_path_runs_again(shell, tmp_path):
    ran = tmp_path / "ran"
    code = (
        f"import os, sys\nif not os.path.exists({str(ran)!r}): os.mkdir('../end'); open({str(ran)!r}, 'w'); sys.exit(1)"
    )
    assert shell.run(shell.write([shell.step("t1", code)])) == 0
    end = shell.files.end("t1")
    assert (end.exit.ok, end.repeated) == (True, 1)


def test_a_trial_whose_job_was_suspended_runs_again_and_says_so(shell, tmp_path):
    here, go = tmp_path / "here", tmp_path / "go"
    waits = f"touch {shlex.quote(str(here))}; until [ -e {shlex.quote(str(go))} ]; do sleep 0.05; done"
    first = step("t1", ["sh", "-c", waits])
    process = shell.start(shell.write([first, shell.step("t2", "pass")]))
    wait_until(here.exists)
    for number in (signal.SIGSTOP, signal.SIGCONT):  # as slurmd does, to every process of the job
        session = ["ps", "-o", "pid=", "--sid", str(process.pid)]
        for pid in subprocess.run(session, capture_output=True, text=True, check=True).stdout.split():
            with contextlib.suppress(ProcessLookupError):  # one of its short sleeps
                os.kill(int(pid), number)
    go.touch()
    assert process.wait(30) == 0
    ends = {name: shell.files.end(name) for name in ("t1", "t2")}
    assert {name: (end.exit.ok, end.stops, end.repeated) for name, end in ends.items()} == {
        "t1": (True, 0, 1), "t2": (True, 0, 0),
    }  # fmt: skip


@pytest.fixture
def stranger():
    """Keep every CPU busy with other programs."""
    count = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for process in busy:
        process.kill()
        process.wait()


def test_what_others_use_of_the_node_is_seen_before_the_block(shell, stranger):
    assert shell.run(shell.write([shell.step("t1", "pass")])) == 0
    (check,) = shell.files.end("t1").checks
    assert check.busy > 0.5
    assert check.free_bytes > 2**20
    assert check.load_1m >= 0
    assert any("python" in name for name in check.others)


def test_a_block_is_handed_back_where_others_use_more_than_is_allowed(shell, stranger):
    assert shell.run(shell.write([shell.step("t1", "pass")], options={"busy": "10%"})) == 76
    status, node, said = shell.files.stop_status_node_and_path(1)
    assert (status, node) == (76, "n1")
    assert "of its CPUs are busy" in said
    assert shell.files.starts() == []


def test_a_results_folder_that_is_not_there_ends_the_job_with_66(shell, tmp_path):
    script = tmp_path / "script.sh"
    script.write_text(block_script(job(tmp_path / "nowhere", [step("t1", ["true"])])))
    assert shell.run(script) == 66


def test_a_trial_that_was_collected_is_not_repeated_by_a_job_that_starts_again(shell):
    script = shell.write([shell.step("t1", "pass"), shell.step("t2", "pass")])
    assert shell.run(script) == 0
    shell.files.mark_done_and_delete("t1")
    assert shell.files.end("t1") is None
    assert shell.run(script, SLURM_RESTART_COUNT="1") == 0
    assert [start.trial for start in shell.files.starts()] == ["t1", "t2"]


def test_a_job_that_must_be_alone_waits_for_another_one_even_if_that_is_killed():
    code = "from envmatrix.block.result_file_writer import lock_host as f; import time\n"
    code += "with f(lambda said: print(said, flush=True)): print('alone', flush=True); time.sleep(60)"
    first, second = (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    )
    by_line = {process.stdout.readline(): process for process in (first, second)}
    assert set(by_line) == {"alone\n", "another run measures on this machine: waiting until it has ended\n"}
    alone = by_line.pop("alone\n")
    (waiting,) = by_line.values()
    alone.kill()
    assert waiting.stdout.readline() == "alone\n"
    waiting.kill()
    for process in (first, second):
        process.communicate()

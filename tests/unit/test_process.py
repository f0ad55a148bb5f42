"""Processes are started as requested, limited, and ended completely."""

import os
import py_compile
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envmatrix.block import fork_limit, process_supervisor
from envmatrix.block import orphans as block_orphans
from envmatrix.block import process as block
from envmatrix.engines import process_limits
from envmatrix.engines.base import Limits
from envmatrix.errors import EnvmatrixError
from envmatrix.system import process
from envmatrix.system.process import Exit, Order, Place, SupervisedProcess, log_or_inherited_streams, run, run_logged
from envmatrix.trials import orphans


def logged(tmp_path, code, *arguments, limit_s=20.0, env=None, cpus=()):
    log = tmp_path / "log"
    with log.open("wb") as file:
        argv = [sys.executable, "-c", code, *arguments]
        ended = run_logged(Order(argv, env or {}, tmp_path, limit_s, Place(cpus)), file)
    return ended, log.read_text()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=100.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came so far"
        time.sleep(0.02)


def test_arguments_and_variables_arrive_exactly_and_nothing_else_does(tmp_path):
    hostile = "a b\t'\"$HOME`id`;|&\\ ,=é"
    code = "import os,sys; print(sys.argv[1] == os.environ['X'], sorted(set(os.environ) - {'LC_CTYPE'}))"
    ended, text = logged(tmp_path, code, hostile, env={"X": hostile})
    assert ended.ok
    assert text == "True ['X']\n"


def test_a_process_that_does_not_end_is_ended_with_all_its_children(tmp_path):
    code = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
os.write(1, b"%d\\n" % os.getpid())
time.sleep(60)
"""
    ended, text = logged(tmp_path, code, limit_s=2.0)
    assert ended.timed_out
    assert "ran past its limit" in str(ended)
    both = [int(word) for word in text.split()]
    assert (len(both), [pid for pid in both if alive(pid)]) == (2, [])


def test_a_signal_is_named(tmp_path):
    ended, _ = logged(tmp_path, "import os; os.kill(os.getpid(), 11)")
    assert str(ended) == "was killed by SIGSEGV"


def test_children_left_in_the_background_are_ended_too(tmp_path):
    code = """
import os, time
told, tell = os.pipe()
if os.fork() == 0:
    print(os.getpid(), flush=True)
    os.write(tell, b"x")
    time.sleep(60)
os.read(told, 1)
"""
    ended, text = logged(tmp_path, code)
    assert ended.ok
    assert not alive(int(text))


def test_the_cpu_set_is_in_place_before_the_program_starts(tmp_path):
    last = max(os.sched_getaffinity(0))
    _, text = logged(tmp_path, "import os; print(os.sched_getaffinity(0))", cpus=(last,))
    assert text.strip() == f"{{{last}}}"


def test_a_program_that_is_not_there_is_told():
    with pytest.raises(EnvmatrixError, match=r"cannot start /no/such/program.*\n.*install it"):
        run(["/no/such/program"], limit_s=20)
    with pytest.raises(EnvmatrixError, match=r"cannot start .*: Permission denied\n.*it is not executable: chmod"):
        run([__file__], limit_s=20)


def test_a_supervisor_that_is_stopped_keeps_nobody_waiting(monkeypatch):
    monkeypatch.setattr(process, "ENDED_S", 0.5)
    monkeypatch.setattr(block, "ENDED_S", 0.5)
    done = run(["sh", "-c", "kill -STOP $PPID; exec sleep 60"], limit_s=1)
    assert done.exit.timed_out


def test_output_and_status_come_back():
    done = run([sys.executable, "-c", "import sys; print(input()); sys.exit(3)"], limit_s=20, input_text="hello")
    assert (done.exit.code, done.stdout) == (3, "hello\n")


def test_a_trial_dies_with_the_runner_that_was_killed(tmp_path):
    runner = f"""
import sys; from pathlib import Path; from envmatrix.system.process import Order, run_logged
with open({str(tmp_path / "log")!r}, "wb") as log:
    code = "import os,time; print(os.getpid(), flush=True); time.sleep(60)"
    run_logged(Order([sys.executable, "-c", code], {{}}, Path("."), 60), log)
"""
    process = subprocess.Popen([sys.executable, "-c", runner], cwd=Path(__file__).parents[2])
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    child = int(log.read_text())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not alive(child))


def test_the_supervisor_is_compiled_once_and_not_for_every_trial():
    py_compile.compile(process_supervisor.__file__)
    argv = [sys.executable, "-I", "-S", "-v", block.STARTER, "0", str(os.getpid())]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, f".pyc matches {process_supervisor.__file__}" in done.stderr) == (1, True)


def test_a_process_whose_program_is_just_being_started_is_found_by_its_variables_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(block_orphans, "_PROC", tmp_path)
    for pid, variables_end, program in ((1, 0, "exe"), (2, 0, "the kernel's own"), (3, 7, "exe")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) b) S {'1 ' * 47}{variables_end} 0\n")
        (folder / "environ").touch()
        (folder / program).symlink_to(sys.executable)
    monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / "1" / "environ").write_bytes(b"A=b\0MARK=us/1\0"))
    assert block_orphans.processes_with_variable("MARK", "us/") == [1]


SPINNING = """
import os
if os.fork() == 0:
    os.setsid()  # a daemon's way out of its group
    os.fork()
os.write(1, f"{os.getpid()}\\n".encode())
while True:
    pass
"""


RUNTIME = """
import os, signal
child = os.fork()
if not child:
    while True: pass
signal.signal(signal.SIGCONT, lambda *_: print("told to go on", flush=True))
print("ready", flush=True)
os.waitpid(child, 0)
"""


def families(pid):
    """Return a process's child, the child's child, and so on."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(children[0]), *families(int(children[0]))] if children else []


def states(pids):
    return {Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in pids}


@pytest.fixture
def spinning(tmp_path):
    """Yield a program of three spinning processes, two of them outside its session, and their process ids."""
    heard, told = os.pipe()
    with os.fdopen(told, "wb") as log:
        program = SupervisedProcess(
            Order([sys.executable, "-c", SPINNING], {}, tmp_path, 60.0), log_or_inherited_streams(log)
        )
        with program, os.fdopen(heard) as said:
            yield program, [int(said.readline()) for _ in range(3)]


def test_what_is_held_stands_still_with_all_that_came_of_it_until_it_is_released(spinning):
    program, pids = spinning
    for _ in range(3):
        program.hold()
        assert states(pids) == {"T"}
        program.release()
        assert "T" not in states(pids)


def test_what_starts_a_pid_namespace_runs_on_while_its_program_is_held(tmp_path):
    # Apptainer's process treats a signal that it can no longer forward as its own end, and reports a wrong exit status.
    own = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace can be had here")
    heard, told = os.pipe()
    argv = [*own, sys.executable, "-c", RUNTIME]
    with os.fdopen(told, "wb") as log:
        program = SupervisedProcess(
            Order(argv, {"PATH": os.environ["PATH"]}, tmp_path, 60.0), log_or_inherited_streams(log)
        )
    with program, os.fdopen(heard) as said:
        assert said.readline() == "ready\n"
        below = families(program.process.pid)
        program.hold()
        assert [state == "T" for pid in below for state in states([pid])] == [False, False, True]
        program.release()
        program.end()
        assert "told to go on" not in said.read()


def test_what_is_held_ends_like_anything_else(spinning):
    program, pids = spinning
    program.hold()
    program.end()
    assert program.answer() == Exit(-signal.SIGINT, pytest.approx(0, abs=60))
    assert not [pid for pid in pids if alive(pid)]


def test_a_program_that_has_ended_is_neither_held_nor_released_and_says_how_it_ended(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        program = SupervisedProcess(
            Order(["/bin/sh", "-c", "exit 3"], {}, tmp_path, 60.0), log_or_inherited_streams(log)
        )
        with program:
            select.select([program], [], [], 60)
            program.hold()
            program.release()
            assert program.answer().code == 3


def test_nothing_is_left_stopped_when_the_host_is_killed(tmp_path):
    host = """
import sys; from pathlib import Path
from envmatrix.system.process import Order, SupervisedProcess, log_or_inherited_streams
order = Order([sys.executable, "-c", sys.argv[1]], {}, Path("."), 60)
with SupervisedProcess(order, log_or_inherited_streams(sys.stdout.buffer)) as program:
    sys.stdin.readline()
    program.hold()
    print("held", flush=True)
    sys.stdin.readline()
"""
    argv = [sys.executable, "-c", host, SPINNING]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tool:
        pids = [int(tool.stdout.readline()) for _ in range(3)]
        tool.stdin.write("\n")
        tool.stdin.flush()
        assert tool.stdout.readline() == "held\n"
        assert states(pids) == {"T"}
        tool.kill()
    wait_for(lambda: not [pid for pid in pids if alive(pid)])


#: Runs a program (with a child) as a trial does, or waits with a cleanup watcher, until it is killed.
OWNS = """
import os, sys, time
from pathlib import Path
from envmatrix.block.process import cleanup_watcher
from envmatrix.system.process import Order, run_logged
program = "import os, time; os.fork(); open(f'is-{os.getpid()}', 'w'); time.sleep(600)"
if sys.argv[1] == "watcher":
    with cleanup_watcher(["/bin/touch", "inherited"]):
        open("is-0", "w").close()
        time.sleep(600)
run_logged(Order([sys.executable, "-c", program], None, Path.cwd(), 600), open("log", "wb"))
"""


def below(pid):
    found = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [*found, *(deeper for child in found for deeper in below(child))]


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Return a function that kills such an owner while its processes are stopped, and returns those processes."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))  # a benchmark that runs meanwhile is left alone
    started = []

    def kill(what, many):
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        owner = subprocess.Popen([sys.executable, "-c", OWNS, what], cwd=tmp_path, env=env)
        wait_for(lambda: list(tmp_path.glob("is-*")) and len(below(owner.pid)) == many)
        started.extend(below(owner.pid))
        for pid in started:
            os.kill(pid, signal.SIGSTOP)
        owner.kill()
        owner.wait()
        time.sleep(0.2)
        return started

    yield kill
    for pid in filter(alive, started):
        os.kill(pid, signal.SIGKILL)


def test_a_supervisor_that_was_stopped_when_its_owner_was_killed_is_swept_with_its_program(stopped):
    left = stopped("program", 3)
    orphans.end_processes()  # the one of a parallel test may have come first
    wait_for(lambda: not any(alive(pid) for pid in left))


def test_an_heir_that_was_stopped_when_its_owner_was_killed_does_its_work(stopped, tmp_path):
    left = stopped("watcher", 1)
    orphans.end_processes()
    wait_for((tmp_path / "inherited").exists)
    wait_for(lambda: not alive(left[0]))


def test_a_supervisor_whose_owner_lives_is_nobodys_orphan(tmp_path):
    order = Order([sys.executable, "-c", "import time; time.sleep(600)"], None, tmp_path, 600)
    with (tmp_path / "log").open("wb") as log, SupervisedProcess(order, log_or_inherited_streams(log)) as program:
        os.kill(program.process.pid, signal.SIGSTOP)
        assert program.process.pid not in block_orphans.orphaned_supervisors()
        os.kill(program.process.pid, signal.SIGCONT)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_what_openmp_runtimes_of_ended_processes_noted_goes_and_that_of_others_stays(tmp_path):
    uid, name = os.getuid(), "/dev/shm/__KMP_REGISTERED_LIB_%d_%d"
    ended = subprocess.Popen(["true"])
    ended.wait()
    before, living = Path(name % (ended.pid, uid)), Path(name % (os.getpid(), uid))
    had = living.exists()
    before.touch()
    os.utime(before, (time.time() - 60,) * 2)
    code = f"import os; open({name!r} % (os.getpid(), {uid}), 'w'); open({str(living)!r}, 'w'); print(os.getpid())"
    try:
        _, text = logged(tmp_path, code)
        assert not Path(name % (int(text), uid)).exists()
        assert living.exists(), "its process lives"
        assert before.exists(), "it was not there in this program's time"
    finally:
        before.unlink(missing_ok=True)
        if not had:
            living.unlink(missing_ok=True)


FORKS = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""


def test_a_program_that_forks_without_end_is_bounded_and_wholly_ended(tmp_path, monkeypatch):
    for module in (fork_limit, process_limits):
        monkeypatch.setattr(module, "MOST_PROCESSES", 100)
    monkeypatch.setattr(fork_limit, "MANY", 50)
    with process_limits.prepare_confinement(f"envmatrix-test.{os.getpid()}", Limits(1.0)) as found:
        if not os.geteuid() and not found.place.groups:
            pytest.skip("root may make no control group for processes here")
        argv = [sys.executable, "-c", FORKS, str(tmp_path)]
        ended = run_logged(Order(argv, {}, tmp_path, 1.0, found.place), subprocess.DEVNULL)
    assert ended.timed_out
    assert 50 < ended.processes <= 100
    assert str(ended).endswith(f"s, with {ended.processes} processes")
    left = [file for file in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in read_or_nothing(file)]
    assert not left


def read_or_nothing(file):
    try:
        return file.read_bytes()
    except OSError:  # it has ended
        return b""

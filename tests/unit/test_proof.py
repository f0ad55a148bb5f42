"""The checks of an environment apply to every program that did the work: real processes, no torch."""

import contextlib
import ctypes.util
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest

from bench.evidence import command_programs, process_tree_watch, program_from_outside
from envmatrix.evidence import notices
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.trials.execution import recorded_packages_variable
from envmatrix.trials.trial_evidence_verification import verify_evidence
from tests.proving import PYTHON, ROOT, TORCH, compiled, environment, evidence_of
from tests.watched import work

STATIC = """
#include <stdio.h>
static long looks(void) {
    long number = 0;
    FILE *file = fopen("FILE_OF_LOOKS", "r");
    if (file) { if (fscanf(file, "%ld", &number) != 1) number = 0; fclose(file); }
    return number;
}
int main(void) {
    long before = looks();
    do for (volatile long i = 0; i < 100000000; i++); while (looks() < before + 2);
    return 0;
}
"""


def other_malloc():
    """Return a library of glibc that no program loads by default and that replaces malloc if preloaded."""
    for folder in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64"):
        if Path(folder, "libmemusage.so").exists():
            return f"{folder}/libmemusage.so"
    pytest.skip("this glibc has no second malloc beside it")


def static_program(folder):
    return compiled(folder, "work", STATIC.replace("FILE_OF_LOOKS", str(folder / "looks")), "-static")


LOOKED_AT = "until read n < {file} && [ $n -ge 4 ]; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; done"
PROGRAMS = {
    "as it is": ([PYTHON, "-c", "{work}"], True),
    "isolated from its variables": ([PYTHON, "-I", "-c", "{work}"], True),
    "gone by os._exit": ([PYTHON, "-c", "{work}; import os; os._exit(0)"], True),
    "forked": ([PYTHON, "-c", "import os; os.fork(); {work}"], True),
    "not Python": (["sh", "-c", LOOKED_AT], True),
    "without variables": (["env", "-i", PYTHON, "-c", "{work}"], False),
    "behind a wrapper that has it": (["sh", "-c", f"{PYTHON} -c 'import json'; env -i {PYTHON} -c '{{work}}'"], False),
    "one of two that work": (["sh", "-c", f"{PYTHON} -c '{{work}}'; env -i {PYTHON} -c '{{work}}'"], False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_preload_that_is_not_mapped_in_what_did_the_work_is_no_proof(tmp_path, name):
    argv, holds = PROGRAMS[name]
    argv = [part.format(work=work(tmp_path / "looks"), file=tmp_path / "looks") for part in argv]
    library = other_malloc()
    found = evidence_of(tmp_path, argv, {"LD_PRELOAD": library})
    said = verify_evidence(environment([library], {"malloc": Path(library).name.split(".so")[0]}), found)
    if holds:
        assert said.wrong == said.unproven == ()
    else:
        assert any("is preloaded, but the process did not load it" in text for text in said.wrong), said
        assert any("claims malloc is" in text for text in said.wrong)


def test_a_static_program_has_no_preload(tmp_path):
    library = other_malloc()
    found = evidence_of(tmp_path, [static_program(tmp_path)], {"LD_PRELOAD": library})
    assert "did not load it" in verify_evidence(environment([library]), found).wrong[0]
    assert verify_evidence(environment(promised={"malloc": "libc"}), found).unproven


def test_what_cannot_be_seen_of_a_program_is_unproven_and_no_contradiction(tmp_path):
    found = evidence_of(tmp_path, [PYTHON, "-I", "-c", work(tmp_path / "looks")], {"OMP_NUM_THREADS": "2"})
    said = verify_evidence(environment(promised={"threads": "2"}, variables={"OMP_NUM_THREADS": "2"}), found)
    assert said.wrong == ()
    assert said.unproven == (
        "claims threads is 2, but one thread was seen at work",
        "not in effect: OMP_NUM_THREADS is read by an OpenMP runtime, but no program loads it",
    )
    one = verify_evidence(environment(promised={"threads": "1"}), found)
    assert (one.wrong, one.unproven) == ((), ()), "so many did the work"


def test_any_package_that_a_claim_names_is_looked_up(tmp_path):
    version = metadata.version("PyYAML")
    mine = environment(promised={"packages.PyYAML": version, "packages.pydantic_core": "2.*"})
    said = recorded_packages_variable([environment(), mine])
    assert said == {"BENCH_PACKAGES": "PyYAML,pydantic_core"}
    assert recorded_packages_variable([environment(promised={"threads": "1"})]) == {}
    found = evidence_of(tmp_path, [sys.executable, "-c", work(tmp_path / "looks")], said)
    assert verify_evidence(mine, found) == verify_evidence(environment(), found)
    assert verify_evidence(environment(promised={"packages.PyYAML": "0.1"}), found).wrong == (
        f"claims packages.PyYAML is 0.1, but it was {version}",
    )


def test_which_python_a_program_is_that_nobody_could_ask_is_not_taken_from_the_one_that_watches_it():
    mine = {"system.python": platform.python_version(), "system.gil": "*", "packages.numpy": "*"}
    seen = read_evidence(
        dict(program_from_outside.evidence(process_tree_watch.Program(1, "python3")), source="outside")
    )
    said = verify_evidence(environment(promised=mine), seen)
    assert (said.wrong, len(said.unproven)) == ((), 3)


def test_what_was_asked_of_the_kernel_for_its_memory_is_seen_of_any_program(tmp_path):
    asked = {"BENCH_HUGE_PAGES": "never", "BENCH_INTERLEAVE": "0"}
    argv = ["env", "-i", PYTHON, "-I", "-c", work(tmp_path / "looks")]
    found = evidence_of(tmp_path, argv, asked)
    promised = {"memory.thp_process": "false", "memory.policy": "interleave:0"}
    said = verify_evidence(environment(promised=promised, variables=asked), found)
    assert (found.source, said.wrong, said.unproven) == ("outside", (), ())


@pytest.mark.parametrize(("path", "unproven"), [("/usr/bin/gawk", 0), ("/usr/bin/python3.9", 1), (None, 1)])
def test_a_helper_that_is_no_python_has_nothing_to_show_of_one(path, unproven):
    inside = {"system": {"python": "3.13.1"}, "source": "probe"}
    helper = {"pid": 2, "name": "helper", "path": path, "evidence": {"source": "outside", "libraries": ["/libc.so.6"]}}
    seen = read_evidence({**inside, "programs": [{"pid": 1, "path": "/usr/bin/python3.13"}, helper]})
    said = verify_evidence(environment(promised={"system.python": "3.13.*"}), seen)
    assert (said.wrong, len(said.unproven)) == ((), unproven)


@pytest.mark.parametrize(
    ("parallel", "wrong", "unproven"),
    [({"nccl": {"NCCL_ALGO": "Ring"}}, 0, 0), ({"nccl": {"NCCL_ALGO": "Tree"}}, 1, 0), (None, 0, 1)],
)
def test_what_nccl_took_in_an_own_program_proves_its_setting_and_a_helper_without_torch_is_not_asked(
    parallel, wrong, unproven
):
    rank = {"source": "probe", "libraries": ["/libtorch_cuda.so"], **({"parallel": parallel} if parallel else {})}
    helper = {"pid": 2, "name": "helper", "evidence": {"source": "probe", "libraries": ["/libc.so.6"]}}
    seen = read_evidence({**rank, "programs": [{"pid": 1}, helper]})
    said = verify_evidence(environment(promised={"parallel.nccl.NCCL_ALGO": "Ring"}), seen)
    assert (len(said.wrong), len(said.unproven)) == (wrong, unproven)


def test_a_variable_that_one_working_program_did_not_get_is_a_contradiction(tmp_path):
    program = f"{PYTHON} -c '{work(tmp_path / 'looks')}'"
    found = evidence_of(tmp_path, ["sh", "-c", f"{program}; A=2 {program}"], {"A": "1", "BENCH_VARIABLES": "A"})
    assert "A should be '1', but the process saw '2'" in " ".join(
        verify_evidence(environment(variables={"A": "1"}), found).wrong
    )


def test_an_orphan_that_works_is_held_against_the_environment(tmp_path):
    library = other_malloc()
    # the first process waits for its end of the pipe, which closes when the orphan has ended
    program = f"""
import os, subprocess, sys
mine, its = os.pipe()
if os.fork():
    os.close(its)
    os.wait()
    os.read(mine, 1)
elif not os.fork():
    os.set_inheritable(its, True)
    os.execvp("env", ["env", "-i", sys.executable, "-c", '{work(tmp_path / "looks")}'])
"""
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"LD_PRELOAD": library})
    assert found.unseen_share < 0.1
    assert "did not load it" in " ".join(verify_evidence(environment([library]), found).wrong)


def stopped_before_its_loader(program, variables):
    """Start a program that the kernel stops after loading it, before its loader has done anything."""
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME: exec stops the process
        os.execve(program, [program], variables)
    os.waitpid(pid, 0)
    return pid


def test_what_was_read_before_the_loader_had_mapped_anything_is_no_contradiction(monkeypatch):
    library = other_malloc()
    monkeypatch.setenv("LD_PRELOAD", library)
    pid = stopped_before_its_loader(shutil.which("true"), {"LD_PRELOAD": library, "A": "1"})
    met = process_tree_watch.Program(pid, "true")
    met.look(pid, 0.0)
    assert [Path(path).name[:3] for path in met.libraries] == ["ld-"]
    os.kill(pid, signal.SIGKILL)
    ended = process_tree_watch.Program(pid, "true")
    ended.variables = {"A": "1"}
    ended.look(pid, 0.0)  # it still exists, but has released everything
    os.waitpid(pid, 0)
    for program in (met, ended):
        seen = read_evidence(command_programs._program_evidence(program))
        said = verify_evidence(environment([library], {"malloc": "libmemusage"}, {"A": "1"}), seen)
        assert said.wrong == ()
        assert any("its libraries could not be read" in text for text in said.unproven)


def test_what_was_read_of_a_process_that_became_another_one_meanwhile_is_dropped():
    other = process_tree_watch.Program(os.getpid(), "python3")
    other.look(other.pid, 0.0, is_same=lambda: False)
    assert (other.libraries, other.variables, other.is_new) == (None, None, True)


AFTERWARDS = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); {then}"


@pytest.mark.parametrize(
    ("then", "told"),
    [("time.sleep(60)", 1), ("[None for _ in range(3 * 10**7)]", 1), ("time.sleep(0.1)", 0)],
)
def test_who_goes_on_when_the_program_has_ended_is_named(tmp_path, then, told):
    found = evidence_of(tmp_path, [PYTHON, "-c", AFTERWARDS.format(then=f"os.closerange(0, 3); {then}")])
    assert len(list(notices.work_outside_timing_notices(found))) == told


def test_a_helper_of_multiprocessing_that_ends_last_does_no_work_elsewhere(tmp_path):
    program = "from multiprocessing import resource_tracker; resource_tracker.ensure_running()"
    found = evidence_of(tmp_path, [PYTHON, "-c", program])
    assert list(notices.work_outside_timing_notices(found)) == [], "what it does at its end is our probe's work"


@pytest.mark.parametrize("kind", ["AF_INET", "AF_UNIX"])
def test_a_server_that_a_program_only_waits_for_is_named(tmp_path, kind):
    place = str(tmp_path / "server")
    with socket.socket(getattr(socket, kind)) as server:
        server.bind(place if kind == "AF_UNIX" else ("127.0.0.1", 0))
        server.listen()
        where = server.getsockname()
        threading.Thread(target=lambda: (server.accept(), time.sleep(2.5)), daemon=True).start()
        program = (
            f"import socket; c = socket.socket(socket.{kind}); c.connect({where!r}); c.recv(1)"  # until it is closed
        )
        found = evidence_of(tmp_path, [PYTHON, "-c", program])
    assert found.served_by == [place if kind == "AF_UNIX" else f"127.0.0.1:{where[1]}"]
    assert "no setting reaches" in " ".join(notices.work_outside_timing_notices(found))


def test_a_client_of_a_program_is_no_server(tmp_path):
    """Guards against naming the front end of a notebook, whose connection was seen from the kernel's side alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def connect():
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
                client.recv(1)
                return
            time.sleep(0.1)

    threading.Thread(target=connect, daemon=True).start()
    program = f"""
import socket, time
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", {port}))
    server.listen()
    client = server.accept()
    time.sleep(2)
"""
    assert evidence_of(tmp_path, [PYTHON, "-c", program]).served_by == []


def test_a_server_that_a_program_starts_itself_is_none_of_others(tmp_path):
    program = """
import os, socket, time
with socket.socket() as server:
    server.bind(("127.0.0.1", 0))
    server.listen()
    if os.fork():
        socket.create_connection(server.getsockname()).recv(1)
    else:
        client = server.accept()
        time.sleep(2)
"""
    assert evidence_of(tmp_path, [PYTHON, "-c", program]).served_by == []


GPU = """
cuda = SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)
backends.cudnn = SimpleNamespace(version=lambda: None)
"""


@pytest.mark.parametrize(
    ("asks", "told"),
    [
        ("torch.cuda.is_available()", 1),
        ("exec('torch.cuda.is_available()', dict(torch=torch, __name__='torch.utils.data'))", 0),
        ("None", 0),
    ],
)
def test_a_program_that_looked_for_a_gpu_in_vain_is_told(tmp_path, asks, told):
    site = tmp_path / "site"
    site.mkdir()
    (site / "torch.py").write_text(TORCH + GPU)
    program = f"import torch; {asks}; {asks}; {work(tmp_path / 'looks')}"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(site)})
    assert len(list(notices.gpu_not_found_notice(found))) == told


def test_tunables_are_seen_whole_from_outside(tmp_path):
    # glibc's loader ends each tunable it parses with a NUL, visible to anyone who reads the variables from outside
    tunables = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=536870912"
    found = evidence_of(tmp_path, [PYTHON, "-I", "-c", work(tmp_path / "looks")], {"GLIBC_TUNABLES": tunables})
    assert verify_evidence(environment(variables={"GLIBC_TUNABLES": tunables}), found).wrong == ()
    assert found.variables["GLIBC_TUNABLES"] == tunables


def test_programs_that_ended_before_anybody_looked_prove_nothing(tmp_path):
    program = f"for n in $(seq 60); do {shutil.which('true')}; done"
    found = evidence_of(tmp_path, ["sh", "-c", program]).model_copy(update={"unseen_share": 0.5})
    promised = environment(promised={"sandbox.seccomp": "*"})
    assert "more than 10% of its CPU time" in verify_evidence(promised, found).unproven[0]
    assert verify_evidence(environment(), found).unproven == ()


def test_watching_a_program_costs_hundredths_of_a_second_and_a_five_hundredth_of_the_time(tmp_path):
    record = tmp_path / "record.json"
    argv = [sys.executable, "-m", "bench", "command", "--record", str(record), "--", "sleep", "2"]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=60)
    assert json.loads(record.read_text())["timing"]["watch_ns"] < 40e6

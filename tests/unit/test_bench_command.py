"""A user's own program: metrics, bounded logs, clear outcomes; real processes, no torch."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import metrics_from_program
from bench.errors import RunError
from envmatrix.engines.base import Limits
from envmatrix.engines.process_limits import prepare_confinement

ROOT = Path(__file__).parents[2]


def command(tmp_path, *options, argv, env=None):
    """Run ``bench command``; return (exit status, record or None, stderr, seconds)."""
    record = tmp_path / "record.json"
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "bench", "command", "--record", str(record), *options, "--", *argv],
        cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    taken = time.monotonic() - start
    return done.returncode, json.loads(record.read_text()) if record.exists() else None, done.stderr, taken


def test_the_last_match_of_the_output_is_the_metric_and_python_brings_its_own_evidence(tmp_path):
    program = "print('rate: 1.5'); print('rate: 2.5')"
    status, record, log, _ = command(
        tmp_path, "--metric-regex", "rate: ([0-9.]+)", "--metric-name", "rate", "--better", "higher",
        argv=[sys.executable, "-c", program],
    )  # fmt: skip
    assert status == 0
    assert record["metric"] == {"name": "rate", "value": 2.5, "better": "higher"}
    assert record["metrics"]["rate"] == 2.5
    assert record["evidence"]["source"] == "probe"
    assert record["evidence"]["malloc"]["library"]
    assert "rate: 1.5" in log


def test_a_process_that_measures_a_program_loads_no_module_that_it_does_not_need(tmp_path):
    argv = [sys.executable, "-X", "importtime", f"{ROOT}/bench/__main__.py", "command", f"--record={tmp_path}/record"]
    done = subprocess.run(
        [*argv, "--", "true"], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "bench.user_program" in loaded
    assert not loaded & {
        "dataclasses",
        "statistics",
        "difflib",
        "bench.options",
        "bench.number_parser",
        "bench.system_event_costs",
    }
    assert not loaded & {"bench.evidence.cuda", "bench.evidence.xla"}


def test_a_json_file_gives_the_metric_by_its_dotted_key(tmp_path):
    file = tmp_path / "out.json"
    program = f"import json; json.dump({{'a': [{{'b': 7}}]}}, open({str(file)!r}, 'w'))"
    status, record, _, _ = command(tmp_path, "--metric-json", str(file), "a.0.b", argv=[sys.executable, "-c", program])
    assert (status, record["metric"]["value"]) == (0, 7.0)


def test_wall_time_is_the_default_and_a_program_without_python_is_seen_from_outside(tmp_path):
    status, record, _, _ = command(tmp_path, argv=["sleep", "0.4"])
    assert status == 0
    assert 0.4 <= record["metric"]["value"] < 30
    assert record["evidence"]["source"] == "outside"
    assert record["evidence"]["openmp"] is None
    assert record["evidence"]["malloc"]["library"] == "libc", "by the loader's order"
    assert any("libc" in path for path in record["evidence"]["libraries"])


def test_the_programs_own_sitecustomize_and_exit_status_are_kept(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine ran')")
    status, record, log, _ = command(
        tmp_path, argv=[sys.executable, "-c", "import sys; sys.exit(5)"], env={"PYTHONPATH": str(tmp_path)}
    )
    assert (status, record) == (1, None)
    assert "mine ran" in log
    assert "exit status 5" in log


@pytest.mark.parametrize(
    ("options", "argv", "words"),
    [
        (["--metric-regex", "x(y)"], ["echo", "hi"], "matched nothing in 2 characters"),
        (["--metric-regex", "(h.)"], ["echo", "hi"], "is no number"),
        (["--metric-regex", "(nan)"], ["echo", "nan"], "no finite number"),
        (["--metric-json", "/nowhere.json", "a"], ["true"], "cannot read /nowhere.json"),
        ([], ["sh", "-c", "kill -9 $$"], "signal 9"),
        (["--limit-s", "0.5"], ["sleep", "100"], "ran past its limit of 0.5 s"),
    ],
)
def test_a_program_without_an_answer_has_one_clear_reason_and_no_record(tmp_path, options, argv, words):
    status, record, log, taken = command(tmp_path, *options, argv=argv)
    assert (status, record) == (1, None)
    assert words in log.splitlines()[-1]
    assert taken < 20


@pytest.mark.parametrize(
    ("options", "argv"), [(["--metric-regex", "("], ["true"]), ([], ["/nowhere/at/all"]), ([], [])]
)
def test_a_command_that_cannot_be_meant_is_bad_input(tmp_path, options, argv):
    status, _, log, _ = command(tmp_path, *options, argv=argv)
    assert status == 2
    assert log.count("\n") == 1


def test_a_flood_of_output_is_read_to_its_end_but_kept_only_at_both_ends(tmp_path):
    log = tmp_path / "log"
    program = "head -c 100000000 /dev/zero | tr '\\0' 'a'; echo; echo rate 3"
    status, record, _, _ = command(
        tmp_path, "--metric-regex", "rate ([0-9]+)", "--log", str(log), "--log-limit-bytes", "10000",
        argv=["sh", "-c", "echo begin; " + program],
    )  # fmt: skip
    assert status == 0
    assert record["metric"]["value"] == 3
    assert record["result"]["output_bytes"] > 1e8
    kept = log.read_bytes()
    assert len(kept) < 10100
    assert kept.startswith(b"begin")
    assert kept.endswith(b"rate 3\n")
    assert b"bytes left out" in kept


def test_a_bar_that_is_drawn_again_without_end_hides_no_number_that_was_printed_before_it(tmp_path):
    program = "import sys; sys.stderr.write('train 7.5it/s\\r' + 'valid 99 of 100, loss=0.5\\r' * 10_000)"
    status, record, log, _ = command(
        tmp_path, "--metric-regex", "^train ([0-9.]+)", "--better", "higher", argv=[sys.executable, "-c", program]
    )  # fmt: skip
    assert status == 0, log[-500:]
    assert record["metric"]["value"] == 7.5


def test_processes_that_the_program_leaves_behind_are_ended(tmp_path):
    mark = f"{time.time_ns() % 10**9}.5"
    status, _, _, taken = command(tmp_path, argv=["sh", "-c", f"sleep {mark} & setsid sleep {mark} & true"])
    assert status == 0
    assert taken < 20
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"sleep {mark}" not in shown


STUBBORN = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_ends_a_program_that_ignores_that_and_removes_its_files(tmp_path, number):
    log = tmp_path / "log"
    argv = [sys.executable, "-m", "bench", "command", "--log", str(log), "--", sys.executable, "-c", STUBBORN]
    process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL)
    while not (log.exists() and "ready" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)  # an impatient caller repeats its signal; ending still completes
    assert process.wait(60) in (128 + number, 128 + signal.SIGTERM)
    assert not Path(f"/proc/{child}").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists))
def test_any_value_in_a_metric_file_is_a_finite_number_or_a_clear_error(tmp_path_factory, value):
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps({"k": value}))
    with contextlib.suppress(RunError):
        number = metrics_from_program.number_from_file(
            metrics_from_program.MetricSource("m", "json", str(file), "k", "lower")
        )
        assert abs(number) < float("inf")


HUNGRY = "x = bytearray(2**30)"


IN_A_CHILD = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', HUNGRY]) != 0)"


@pytest.mark.parametrize("inner", ["", IN_A_CHILD])
def test_memory_that_ran_out_in_the_program_or_in_its_child_is_told(tmp_path, inner):
    code = f"HUNGRY = {HUNGRY!r}\n{inner}" if inner else HUNGRY
    argv = [sys.executable, "-m", "bench", "command", "--record", str(tmp_path / "record.json")]
    with prepare_confinement(f"envmatrix-test.{os.getpid()}", Limits(60.0, memory_bytes=2**27)) as confinement:
        if not confinement.memory_group:
            pytest.skip("this user may make no cgroup with a memory limit")
        enter = ["/bin/sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', str(confinement.place.groups[0])]
        done = subprocess.run(
            [*enter, *argv, "--", sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
        )
    how = "exit status 1" if inner else "signal 9 (Killed)"
    assert f"the command ended with {how} as memory ran out (1 killed by the kernel)" in done.stderr

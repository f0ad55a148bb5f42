"""The user's own program as a workload: run it, limit its log, and read its metric and evidence."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from bench import code_digest, metrics_from_program, process_resource_usage, record
from bench.early_and_late_steps import first_half_extra_s, first_to_last_step_ratio, program_second_half
from bench.errors import BenchError, RunError
from bench.evidence import cgroup, command_programs, proc_files, process_tree_watch, stop_and_continue_count
from bench.evidence.reading import attempt
from bench.step_times_from_output import Marks
from bench.user_program_output import Output, Pipe
from bench.user_program_turns import StepTurns, Turns

_PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe")
_CHUNK_BYTES = 1 << 16
#: Seconds between SIGTERM and SIGKILL. The host waits longer between SIGINT and SIGTERM for this process.
_GRACE_S = 1.0
#: Seconds between checks for a stop request if the process cannot be waited for (no pidfd).
_POLL_S = 0.1
#: A program that uses less of one CPU than this share may be waiting for the work of a server.
_IDLE = 0.5
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
#: Counters of the whole machine or control group, whichever process reads them.
_WHOLE_MACHINE_COUNTERS = ("pressure_s", "throttled_s", "others_s", "energy_j", "gpu_energy_j")


def _digest(options: Mapping[str, Any]) -> str:
    """Return the digest of the command, with this environment's own Python replaced by ``python``: its path differs."""
    program, *rest = options["command"]
    folder, name = os.path.split(program)
    is_own_python = folder == os.path.dirname(sys.executable) and name.startswith("python")
    return code_digest.options_digest(dict(options, command=["python" if is_own_python else program, *rest]))


class _SignalWatch:
    """Context manager that defers the first SIGINT or SIGTERM until ``wait``, ``heed`` or the end of the block.

    An exception raised anywhere else could leave the program running and its temporary files on disk.
    """

    def __init__(self) -> None:
        self.number = 0
        self._wake, self._written = os.pipe()
        self._old: dict[int, Any] = {}
        self._old_file = -1

    def __enter__(self) -> _SignalWatch:
        for file in (self._wake, self._written):
            os.set_blocking(file, False)
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
            # A signal may reach another thread while this one waits; every signal writes to this file.
            self._old_file = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        return self

    def _hear(self, number: int, _frame: object) -> None:
        self.number = self.number or number

    def wait(self, files: Sequence[int], seconds: float | None) -> bool:
        """Wait until one of these file descriptors is readable; return False on timeout. Exits after a signal."""
        deadline = time.monotonic() + (seconds or 0.0)
        while True:
            left_s = None if seconds is None else max(0.0, deadline - time.monotonic())
            readable = select.select([*files, self._wake], [], [], left_s)[0]
            if self._wake in readable:  # written by any signal, also SIGCHLD
                os.read(self._wake, _CHUNK_BYTES)
            self.heed()
            if not readable or any(file in readable for file in files):
                return bool(readable)

    def heed(self) -> None:
        """Raise SystemExit if a signal has arrived."""
        if self.number:
            raise SystemExit(128 + self.number)

    def __exit__(self, kind: object, *_: object) -> None:
        if self._old:
            signal.set_wakeup_fd(self._old_file)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        for file in (self._wake, self._written):
            os.close(file)
        if kind is None:
            self.heed()


def run(
    argv: Sequence[str], wanted: metrics_from_program.WantedNumbers, limit_s: float | None = None,
    log: BinaryIO | None = None, log_limit_bytes: int = 1 << 20, prepare: Sequence[str] = (), gate: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run ``argv`` and return its record. Its output goes to ``log``, a binary file (default: stderr).

    ``wanted`` lists the numbers to read. ``prepare`` is a command that runs first and is not measured. ``gate`` is the
    folder of the gate for interleaved runs; only the wall time or steps of its turns can be measured then. Raises
    BenchError if it cannot start, and RunError if it fails, times out or does not report its numbers.
    """
    numbers = metrics_from_program.Numbers(wanted)
    if prepare:
        _prepare(prepare, log or sys.stderr.buffer)
    usage_before = process_resource_usage.usage(resource.RUSAGE_CHILDREN)
    counters_before = process_resource_usage.read()
    load_1m = attempt(lambda: os.getloadavg()[0])
    with _SignalWatch() as signals:
        probed = tempfile.mkdtemp(prefix=f"bench-probe.{os.getpid()}.")
        try:
            turns, limits = _make_turns(gate, numbers, signals), (limit_s, log_limit_bytes, signals)
            watched, wall_ns, output = _run(argv, probed, limits, log or sys.stderr.buffer, numbers, turns)
            grown, usage = process_resource_usage.since(counters_before), _usage_since(usage_before)
            cpu_s = usage["user_s"] + usage["system_s"]
            evidence, probe_ns = command_programs.evidence_and_probing_ns(probed, watched, cpu_s, in_turns=bool(turns))
        finally:
            shutil.rmtree(probed, ignore_errors=True)
    evidence["system"].update(load_1m=load_1m, steal_ticks=None if turns else grown["steal_ticks"])
    usage |= {name: None if turns else grown[name] for name in _WHOLE_MACHINE_COUNTERS}  # others ran between turns
    turn_times = turns.step_times_by_turn() if isinstance(turns, StepTurns) else None
    usage |= {"run_delay_s": watched.run_delay_s(cpu_s), "turn_start": first_to_last_step_ratio(turn_times or ())}
    usage |= turns.contention_seconds(wall_ns) if turns else {}
    evidence["system"]["stops"] = None if turns else max(stop_and_continue_count.count() or 0, watched.stops)
    served_by = watched.sockets.outside() if 1e9 * cpu_s < _IDLE * wall_ns else []
    evidence |= {"lost_preloads": sorted(output.lost_preloads), "left_running": watched.left}
    evidence["served_by"] = served_by  # what may have done work for the program
    thread = evidence.pop("step_thread")
    wall_ns -= probe_ns
    reported, watch_ns = numbers.as_record(wall_ns), round(watched.cost_s * 1e9)
    times = {"paused_ns": turns.paused_ns if turns else None, **_step_times(numbers.marks, turn_times)}
    usage["first_half_extra_s"] = first_half_extra_s(times.get("steps_ns") or ())
    return dict(
        record.frame(), workload=_workload(argv, wanted), skipped=None, data=None, timing={"wall_ns": wall_ns,
        "probe_ns": probe_ns, "watch_ns": watch_ns, **times}, metrics={"wall_s": wall_ns / 1e9,
        **usage, wanted.metric.name: reported["metric"]["value"]}, **reported, result={"output_bytes": output.total},
        step_thread=_priced_thread(thread, wall_ns),
        evidence=evidence,
    )  # fmt: skip


def _priced_thread(thread: dict[str, Any] | None, wall_ns: int) -> dict[str, Any] | None:
    """Return the account of a program's first thread, with the costs of events on this machine; None without one."""
    if not thread:
        return None
    from bench import system_event_costs

    return dict(thread, wall_ns=wall_ns, steps=None, prices=system_event_costs.measure())


def _workload(argv: Sequence[str], wanted: metrics_from_program.WantedNumbers) -> dict[str, Any]:
    """Return the command and its numbers as options, with their digest."""
    options: dict[str, Any] = {"command": list(argv), "metric": wanted.metric.as_record()}
    for name, numbers_read in {"more_metrics": wanted.more, "checks": wanted.checks}.items():
        if numbers_read:
            options[name] = [number.as_record() for number in numbers_read]
    return {"digest": _digest(options), "options": options}


def _step_times(marks: Marks | None, turn_times: list[tuple[list[int], list[int]]] | None) -> dict[str, Any]:
    """Return the times of the steps that the program printed, in the record's form."""
    if not marks:
        return {}
    steps_ns, turns = marks.counted_steps_ns(), None
    if turn_times is not None:
        turns = [{"apart_ns": apart, "steps": len(counted)} for apart, counted in turn_times]
    else:  # the first step's time is that of the start too
        turn_times = [(apart[1:], counted) for apart, counted in marks.step_times_by_turn()]
    later = program_second_half(turn_times)
    return {
        "steps_ns": steps_ns, "turns": turns, "later": later, "averaged_steps": marks.averaged,
        "dropped_steps": marks.dropped,
    }  # fmt: skip


def _make_turns(gate: str | None, numbers: metrics_from_program.Numbers, signals: _SignalWatch) -> Turns | None:
    if gate is None:
        return None
    if numbers.wanted.more or numbers.wanted.metric.kind not in ("wall", "steps"):
        raise BenchError("--gate: a program that reports its own times cannot be paused: its clock would go on")
    return StepTurns(gate, signals.wait, numbers.marks) if numbers.marks else Turns(gate, signals.wait)


def _prepare(argv: Sequence[str], log: BinaryIO) -> None:
    command_text = f"prepare ({' '.join(map(shlex.quote, argv))})"
    try:
        result = subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        raise RunError(f"{command_text} cannot be started: {error.strerror}") from error
    log.write(result.stdout)
    log.flush()
    if result.returncode:
        raise RunError(f"{command_text} ended with {_exit_description(result.returncode)}")


def _exit_description(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"signal {-status} ({signal.strsignal(-status)})"


def _run(
    argv: Sequence[str], probed: str, limits: tuple[float | None, int, _SignalWatch], log: BinaryIO,
    numbers: metrics_from_program.Numbers, turns: Turns | None,
) -> tuple[process_tree_watch.Watch, int, Output]:  # fmt: skip
    if turns:
        turns.begin()
    limit_s, log_limit_bytes, signals = limits
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    variables = _variables(probed, unbuffered=bool(numbers.marks))
    pipe = Pipe(apart=bool(numbers.marks))
    kills, start = attempt(cgroup.oom_kills), time.perf_counter_ns()
    try:
        process = subprocess.Popen(
            argv, env=variables, stdin=subprocess.DEVNULL, stdout=pipe.written, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise BenchError(f"cannot start {argv[0]}: {error.strerror}") from error
    finally:
        os.close(pipe.written)
    if numbers.marks and not turns:
        numbers.marks.begin(start, numbers.marks.warmup)
    output = Output(pipe, log, log_limit_bytes, numbers.look if numbers.looks else None)
    watched = process_tree_watch.Watch(process.pid)
    try:
        if turns:
            wall_ns = turns.run(process, start)
        else:
            _wait(process, limit_s, signals)
            wall_ns = time.perf_counter_ns() - start
        watched.stop()  # before it is reaped, while its /proc entry exists
        status = process.wait()
        watched.left = [] if status else command_programs.left_running(probed)
    except subprocess.TimeoutExpired:
        raise RunError(f"the command ran past its limit of {limit_s:g} s and was ended") from None
    finally:
        watched.stop()
        _end_group(process)
        output.write_rest_of_log()
    if turns:
        turns.wait_for_extra_seconds()
    if status:
        raise RunError(
            f"the command ended with {_exit_description(status)}{cgroup.memory_ran_out(kills)}; its output is "
            "in the log"
        )
    return watched, wall_ns, output


def _variables(probed: str, unbuffered: bool) -> dict[str, str]:
    paths = [_PROBE, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), BENCH_PROBE=probed)
    variables.update(command_programs.nccl_logging_variables(probed))
    return dict(variables, PYTHONUNBUFFERED="1") if unbuffered else variables  # flush Python's output at once


def _wait(process: subprocess.Popen[bytes], limit_s: float | None, signals: _SignalWatch) -> None:
    """Wait for a process to end without reaping it, so that its costs can still be read. Exits on a signal."""
    try:
        file = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # Linux before 5.3: its costs come from other counters
        _wait_and_reap(process, limit_s, signals)
        return
    try:
        if not signals.wait([file], limit_s):
            raise subprocess.TimeoutExpired(process.args, limit_s or 0.0)
    finally:
        os.close(file)


def _wait_and_reap(process: subprocess.Popen[bytes], limit_s: float | None, signals: _SignalWatch) -> None:
    deadline = time.monotonic() + (float("inf") if limit_s is None else limit_s)
    while True:
        try:
            process.wait(max(0.0, min(_POLL_S, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            signals.heed()
            if time.monotonic() >= deadline:
                raise
        else:
            return


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the command's process group, then every orphan it left: as subreaper, this process is their parent."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_GRACE_S)
        except (ProcessLookupError, PermissionError):
            break
        except subprocess.TimeoutExpired:
            continue
    process.poll()
    for _ in range(100):
        leftover = proc_files.children(os.getpid())
        if not leftover:
            return
        for pid in leftover:
            with suppress(ProcessLookupError, ChildProcessError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _usage_since(before: Mapping[str, float]) -> dict[str, Any]:
    """Return the peak memory of the ended children, and what they used since an earlier reading."""
    usage = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}
    return usage | {
        name: late - before[name] for name, late in process_resource_usage.usage(resource.RUSAGE_CHILDREN).items()
    }

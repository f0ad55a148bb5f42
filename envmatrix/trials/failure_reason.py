"""The reason for a process's failure, from the last lines of its log."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from envmatrix.system.printable import printable_line

_LONGEST_REASON = 400
_TAIL_BYTES = 65536
#: The start of the benchmark's own last line (docs/record.md), and its form for a program's exit.
_BENCH_ERROR_PREFIX = "bench: error: "
_COMMAND_ENDED = re.compile(r"(the command ended with .+); its output is in the log\Z")
_BENCH_END = re.compile(
    rf"{_BENCH_ERROR_PREFIX}(?:the command ended with (?:exit status (\d+)|signal (\d+)))?[^\n]*\n?\Z"
)
#: The last line of a traceback, such as ``torch.cuda.OutOfMemoryError: ...``.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Failure)(:.*)?\Z")
_COMPLAINT = re.compile(r"error\b|fatal|not found|no such file|killed|abort|segmentation|cannot|denied", re.IGNORECASE)
#: Part of an error -> its meaning, if the error itself names no cause.
_MEANINGS = {
    "operator torchvision::": "torch and torchvision are different builds (CPU, CUDA): install both from one index"
}
#: The prefix of the uncaught exceptions of torch.distributed's processes.
_RANK = re.compile(r"\[rank\d+\]: ?")
#: Where torchrun begins to report failed workers, and where it names the first of them.
_TORCHRUN_REPORT = re.compile(r"failed \(exitcode: |ChildFailedError")
_ROOT_CAUSE = re.compile(r"Root Cause \(")
_WORKER_SIGNAL = re.compile(r"traceback *: (Signal .+) received by PID")
_ANSI_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def log_tail(log: Path | None, lines: int = 15) -> list[str]:
    """Return the last lines of a log as a terminal would show them: only the last state of a progress bar."""
    if log is None:
        return []
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    visible_lines = (_ANSI_SEQUENCE.sub("", line.rstrip().rpartition("\r")[2]).rstrip() for line in text.split("\n"))
    return [line for line in visible_lines if line][-lines:]


def colon_and_last_line(log: Path | None) -> str:
    """Return ``: `` and the last line that a process printed, '' if there is none."""
    last_lines = log_tail(log, 1)
    return f": {last_lines[-1].strip()[:_LONGEST_REASON]}" if last_lines else ""


def why_program_failed(log: Path | None) -> str:
    """Return why a user's program failed: its exit, and its own last error line.

    '' if the benchmark's last line is missing, for example after a kill.
    """
    log_lines = log_tail(log, 1000)
    if not log_lines or not log_lines[-1].startswith(_BENCH_ERROR_PREFIX):
        return ""
    bench_error, program_lines = (
        log_lines[-1].removeprefix(_BENCH_ERROR_PREFIX),
        [line.strip() for line in log_lines[:-1]],
    )
    exit_match = _COMMAND_ENDED.match(bench_error)
    if not exit_match:
        return bench_error[:_LONGEST_REASON]
    error = _error_line(program_lines)
    meaning_text = next((f" ({meaning})" for text, meaning in _MEANINGS.items() if text in error), "")
    reason = f"{exit_match[1]}{': ' + error + meaning_text if error else ' and printed nothing'}"
    return printable_line(reason, _LONGEST_REASON)


def split_program_log(log: Path) -> tuple[str, int | None]:
    """Return what a user's program printed, and its exit code if it failed (128 + N for signal N).

    The benchmark's own last line is removed; it follows on the same line if the output does not end with a newline.
    """
    text = log.read_bytes().decode(errors="replace") if log.exists() else ""
    match = _BENCH_END.search(text)
    if not match:
        return text, None
    status, number = match.groups()
    return text[: match.start()], int(status) if status else 128 + int(number) if number else None


def _error_line(lines: Sequence[str]) -> str:
    """Return the most informative line: an exception, otherwise another error, otherwise the last line.

    torchrun's own exception says nothing, so its report and its workers are asked.
    """
    report_start = _find(_TORCHRUN_REPORT, lines)
    program_lines, report = lines[:report_start], lines[report_start:]
    cause = report[_find(_ROOT_CAUSE, report) :]
    signal = next((f"a worker was ended by {match[1]}" for line in cause if (match := _WORKER_SIGNAL.match(line))), "")
    prefix = next((match[0] for line in program_lines if (match := _RANK.match(line))), "")  # of the first to fail
    first_rank = [line.removeprefix(prefix) for line in program_lines if prefix and line.startswith(prefix)]
    return (
        _last(_EXCEPTION.match, cause)
        or signal
        or _last(_EXCEPTION.match, first_rank)
        or _last(_EXCEPTION.match, program_lines)
        or _last(_COMPLAINT.search, program_lines)
        or (program_lines or lines or [""])[-1]
    )


def _find(pattern: re.Pattern[str], lines: Sequence[str]) -> int:
    """Return the index of the first line with a pattern; their number if none has it."""
    return next((number for number, line in enumerate(lines) if pattern.search(line)), len(lines))


def _last(matches: Callable[[str], object], lines: Sequence[str]) -> str:
    return next((line for line in reversed(lines) if matches(line)), "")

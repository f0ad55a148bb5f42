"""`envmatrix bench` in a process of its own, for ``envmatrix mcp --allow-run``, whose tools start and stop it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from envmatrix.block import interrupts
from envmatrix.errors import InputError
from envmatrix.matrix.model import NAME
from envmatrix.system.process import Order, SupervisedProcess

#: Runs this package's command. The working folder, which may have modules of the same names, is not on its path.
_COMMAND = (
    f"import sys; sys.path[:] = [*filter(None, sys.path), {str(Path(__file__).parents[2])!r}]; "
    "from envmatrix.__main__ import main; sys.exit(main())"
)
#: Seconds that a run may take with all that it builds; its own budget ends it before.
_LIMIT_S = 7 * 24 * 3600.0
#: Seconds to end a trial and write the report; less than a supervisor has to end (``process.ENDED_S``).
_GRACE_S = 18.0
#: Seconds to wait for a run to begin: most mistakes are told by then.
_BEGIN_S = 10.0
_LAST_CHARACTERS, _LAST_LINES = 8000, 20


class BackgroundBench:
    """At most one run at a time; it ends with this process."""

    def __init__(self, results: Path) -> None:
        self.results = results.resolve()
        self.name = ""
        self._exit_code: int | None = None
        self._process: SupervisedProcess | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this process
        self._lock = threading.RLock()

    def start_run(
        self,
        name: str,
        design: str | None = None,
        program: list[str] | None = None,
        environments: list[str] | None = None,
        budget: str = "10m",
    ) -> dict[str, object]:
        """Start `envmatrix bench` under a new `name`, and return when it has begun; see `run_status` for its progress.

        Pass a design of matrix.yaml (default: 'default'), or a program as a list of words, such as ['python',
        'train.py']. `budget` is how long to measure: '90s', '10m', '2h'. Other work on this machine disturbs it.
        """
        words = _bench_arguments(self.results, name, design, program, environments, budget)
        with self._lock:
            if self._is_running():
                raise InputError(f"run {self.name!r} is being measured", remedy="wait for its end, or call stop_run")
            if (self.results / name).exists():
                raise InputError(f"there is already a run {name!r}", remedy="pass another name")
            self.name, self._exit_code, self._log = name, None, tempfile.TemporaryFile()  # noqa: SIM115
            argv = [sys.executable, "-c", _COMMAND, *words]
            streams = (subprocess.DEVNULL, subprocess.DEVNULL, self._log)
            self._process = SupervisedProcess(Order(argv, None, None, _LIMIT_S, grace_s=_GRACE_S), streams)
        deadline = time.monotonic() + _BEGIN_S
        while self._is_running() and not self._has_begun() and time.monotonic() < deadline:
            time.sleep(0.1)
        if self._exit_code and not self._has_begun():
            raise InputError("\n".join(self._last_lines()).removeprefix("envmatrix: "))
        return self.state()

    def stop_run(self) -> dict[str, object]:
        """Stop the run that `start_run` started, and no other. Its trials are kept; `envmatrix resume` continues it."""
        if not self._is_running():
            raise InputError("no run that was started here is being measured", remedy="`run_status` tells of others")
        self.close()
        return self.state()

    def state(self) -> dict[str, object]:
        """Return the state of the last started run, with its last messages, which tell no results."""
        running = self._is_running()
        return {"run": self.name, "running": running, "exit_code": self._exit_code, "messages": self._last_lines()}

    def close(self) -> None:
        """End the run as Ctrl-C does, and wait for its end."""
        with self._lock:
            process, self._process = self._process, None
            if process:
                with process:
                    process.end()

    def _is_running(self) -> bool:
        with self._lock:
            if self._process and interrupts.wait_readable([self._process], 0):
                with self._process as process:
                    self._exit_code, self._process = process.answer().code, None
            return self._process is not None

    def _has_begun(self) -> bool:
        return (self.results / self.name / "run.json").exists()

    def _last_lines(self) -> list[str]:
        """Return the end of the log, without moving the position at which the process writes."""
        handle = self._log.fileno()
        start = max(0, os.fstat(handle).st_size - _LAST_CHARACTERS)
        return os.pread(handle, _LAST_CHARACTERS, start).decode(errors="replace").splitlines()[-_LAST_LINES:]


def _bench_arguments(
    results: Path,
    name: str,
    design: str | None,
    program: list[str] | None,
    environments: list[str] | None,
    budget: str,
) -> list[str]:
    """Return the arguments of `bench`; no value can be read as an option of its own."""
    for word in (name, *([design] if design is not None else [])):
        if not NAME.match(word):
            raise InputError(f"{word!r} is not a valid name", remedy="use letters, digits, '.', '_', '+' and '-'")
    options = ["--quiet", f"--name={name}", f"--results={results}", f"--budget={budget}"]
    options += [f"--environments={','.join(environments)}"] if environments else []
    words = ["bench", *([design] if design else []), *options, *(["--", *program] if program else [])]
    if any("\0" in word for word in words):
        raise InputError("an argument contains a null character", remedy="remove it")
    return words

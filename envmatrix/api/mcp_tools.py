"""What ``envmatrix mcp`` serves of the runs in one folder: most methods are tools; their docstrings are for agents.

Runs are found by name only, so that a client cannot reach anything outside the folder. With ``--allow-run``, tools
start and stop `envmatrix bench`, which runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from envmatrix.api import run_results
from envmatrix.api.matrix_and_run_lookup import find_run
from envmatrix.api.runs import load
from envmatrix.block import interrupts
from envmatrix.errors import InputError, suggestion
from envmatrix.matrix.model import NAME
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.results.elapsed import trials_elapsed_s
from envmatrix.stats.attribution.explanation import to_json
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


#: The most characters of JSON in an answer, some 20,000 tokens: clients refuse or cut longer ones.
MOST_CHARACTERS = 60_000
#: The most runs that are listed.
MOST_RUNS = 500


class ServedRuns:
    """The runs in ``results``, and the one that ``bench`` started (None: nothing can be started)."""

    def __init__(self, results: Path, bench: BackgroundBench | None = None) -> None:
        self.results, self.bench = results.resolve(), bench

    def list_runs(self) -> dict[str, object]:
        """List the names of runs, newest first, and of searches (`envmatrix tune`)."""
        runs, searches = self._names("run.json"), self._names("study.json")
        return {"runs": runs[:MOST_RUNS], "searches": searches[:MOST_RUNS], "count": len(runs)}

    def run_status(self, run: str | None = None) -> dict[str, object]:
        """Say whether a run (default: the newest) is being measured, and how far it is. Tells no results.

        Use this to wait for a run: to read its report before its end is an interim analysis, which is recorded.
        """
        started = self.bench.state() if self.bench and run and run == self.bench.name else {}
        if started and run not in self._names("run.json"):
            return started
        folder = find_run(self._path(run), self.results)
        plan = folder.load().plan
        trials = list(folder.facts(plan))
        document = {
            "run": folder.path.name,
            "running": folder.is_written() or bool(started.get("running")),
            "trials": dict(Counter(trial.outcome for trial in trials)),
            "blocks": len({trial.block for trial in trials}),
            "max_blocks": plan.max_blocks,
            "elapsed_s": round(trials_elapsed_s(trials), 1),
            "budget_s": plan.budget_s,
            "has_report": (folder.path / "summary.json").is_file(),
        }
        return {**started, **document}

    def report(self, run: str | None = None, part: str | None = None, first: int = 0) -> dict[str, object]:
        """Return the summary of a run (default: the newest): the best environment, each effect, warnings.

        Parts that are too long are named in `left_out`, with their length. Ask for each with `part`; of a long list you
        get the items from number `first` on, and in `next` the number to continue with.
        """
        document = summary_to_json(load(self._path(run), results=self.results).summary)
        if part is None:
            return _without_long_parts(document)
        if part not in document:
            raise InputError(f"the report has no part {part!r}", remedy=suggestion(part, document))
        value = document[part]
        if not isinstance(value, list):
            return _checked({part: value}, "it is in summary.json, in the folder of the run")
        items = _page(value, max(0, first))
        end = max(0, first) + len(items)
        return {part: items, "count": len(value), "next": end if items and end < len(value) else None}

    def explain(self, run: str | None = None, environment: str | None = None) -> dict[str, object]:
        """Say why environments of a run (default: the newest) are faster or slower, in parts that add up."""
        explanations, unexplained = run_results.explain(self._path(run), environment, results=self.results)
        document = {"why": [to_json(explanation) for explanation in explanations], "not_explained": unexplained}
        return _checked(document, "name one environment")

    def compare(
        self,
        old: str,
        new: str | None = None,
        environments: list[str] | None = None,
        allowed: float | str = 0.0,
        anyway: bool = False,
    ) -> dict[str, object]:
        """Compare two runs, or two `environments` (old, new) of one run, and say whether the new one is slower.

        A ratio above 1 is faster. `allowed` is the accepted slow-down, such as '3%'. With `anyway`, runs need not be
        comparable. `exit_code`: 7 other work, 5 slower, otherwise 0.
        """
        names = None if new is None else self._path(new)
        compared = run_results.compare(
            self._path(old), names, environments=environments, allowed=allowed, anyway=anyway, results=self.results
        )
        return _checked(compared.to_json(), "name the environments")

    def _names(self, kind: str) -> list[str]:
        """Return the names of the folders with this file, newest first; not of links, which may lead elsewhere."""
        files = [file for file in self.results.glob(f"*/{kind}") if not file.parent.is_symlink()]
        return [file.parent.name for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]

    def _path(self, run: str | None) -> Path:
        """Return the folder of a run, or of a search, by its name; of the newest run for None."""
        runs = self._names("run.json")
        if run is None:
            if not runs:
                raise InputError(f"no runs in {self.results}", remedy="create one: `envmatrix bench`")
            return self.results / runs[0]
        if run not in runs and run not in self._names("study.json"):
            raise InputError(f"no run {run!r} in {self.results}", remedy=suggestion(run, runs))
        return self.results / run


def _length(value: object) -> int:
    return len(json.dumps(value))


def _checked(document: Mapping[str, object], remedy: str) -> dict[str, object]:
    """Return a document; raise an InputError if it is too long."""
    if (length := _length(document)) > MOST_CHARACTERS:
        raise InputError(f"the answer has {length:,} characters, and at most {MOST_CHARACTERS:,} fit", remedy=remedy)
    return dict(document)


def _without_long_parts(document: dict[str, object]) -> dict[str, object]:
    """Return a document in its order without the longest parts, so that it fits; ``left_out`` has their lengths."""
    lengths = {name: _length(value) for name, value in document.items()}
    kept, total = set[str](), 0
    for name in sorted(lengths, key=lengths.__getitem__):
        total += lengths[name]
        if total <= MOST_CHARACTERS:
            kept.add(name)
    left_out = {name: length for name, length in lengths.items() if name not in kept}
    return {**{name: value for name, value in document.items() if name in kept}, "left_out": left_out}


def _page(items: list[object], first: int) -> list[object]:
    """Return the items from ``first`` on that fit, at least one."""
    page, total = list[object](), 0
    for item in items[first:]:
        total += _length(item)
        if page and total > MOST_CHARACTERS:
            break
        page.append(item)
    return page

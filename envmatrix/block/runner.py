"""Run a block's order on a node: one part after another, each in a folder that gets its final name at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envmatrix.block import interrupts, node_checks, orphans
from envmatrix.block.block_instructions import (
    BUSY,
    CANNOT_WRITE,
    DELETED,
    NOT_SEEN,
    OTHER_NODE,
    BlockOrder,
    Part,
    TrialOrder,
    read_order,
)
from envmatrix.block.part_run import Outcome, PartRun
from envmatrix.block.process import NotStartedError
from envmatrix.block.program_overlay import SCRATCH, remove_folder
from envmatrix.block.result_file_writer import WRITE_ERRORS, JobFiles, StopError, lock_host
from envmatrix.block.srun import Nodes, inspect_task, rank_task
from envmatrix.block.turn_gate import FOLDER

#: How often a trial is repeated if it was suspended or could not write.
_REPEATS = 3
#: Seconds to wait for the signal that ends the job, after a signal ended a trial.
_OWN_SIGNAL_S = 2.0
_TASKS_FAILED = 70


class BlockRunner:
    """One job: its order and node, and its state so far."""

    def __init__(self, order: BlockOrder, file: Path, node: str, job: str, restarts: int) -> None:
        self.order, self.node, self.job, self.restarts = order, node, job, restarts
        self.files = JobFiles(Path(order.folder), order.attempt, order.patience_s, self.say)
        by_srun = any(trial.by_srun for trial in order.trials)
        self.nodes = Nodes(node.split(","), file) if by_srun else None
        self.mark = f"job/{job}/{os.getpid()}/"
        self.checks: list[object] = []
        self.stops = 0
        self.notices: tuple[signal.Signals, ...] = ()
        self.alarm, self._alarm_sender = socket.socketpair()
        self._alarm_sender.setblocking(False)

    def say(self, text: str) -> None:
        """Write a line to the job's log."""
        with contextlib.suppress(OSError):  # a full disk
            os.write(1, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.node}: {text}\n".encode())

    def run(self) -> int:
        """Run all parts; return the job's exit status."""
        try:
            self._begin()
            self._check_nodes()
            for part in self.order.parts:
                if not (self.files.holds(part.name) or self.files.holds(f"{part.name}.done")):
                    self._check_current()
                    self._run_part(part)
            orphans.end_processes(self.mark)
            self.say("all trials of this job are done")
        except StopError as stop:
            if stop.status:
                self.say(f"the job stops with status {stop.status}: {stop.what}")
            if stop.status not in (0, CANNOT_WRITE, _TASKS_FAILED):
                words = [str(stop.status), stop.node or self.node, stop.what]
                self.files.write_whole(f"stopped-{self.order.attempt}", " ".join(filter(None, words)))
            return stop.status
        except (OSError, NotStartedError) as error:
            self.say(f"the job stops: {error}")
            return CANNOT_WRITE if getattr(error, "errno", None) in WRITE_ERRORS else 1
        return 0

    def _begin(self) -> None:
        log = self.files.retry("open the log", lambda: (self.files.folder / f"job-{self.order.attempt}.log").open("ab"))
        with log, open(os.devnull, "rb") as nothing:
            for file, number in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(file.fileno(), number)
        signal.signal(signal.SIGCONT, self._note_suspension)
        for number in (signal.SIGUSR2, *self.notices):
            signal.signal(number, self._stop_deleted)
        self.say(f"job {self.job} begins, attempt {self.order.attempt}, restart {self.restarts}")
        begun = {"job": self.job, "node": self.node, "epoch": int(time.time()), "restarts": self.restarts}
        self.files.write_whole(f"begun-{self.order.attempt}", json.dumps(begun))
        home = self.files.read("node")
        if home and home != self.node:
            self.say(f"this block belongs to node {home}")
            raise StopError(OTHER_NODE)

    def _note_suspension(self, *_: object) -> None:
        """Record that the job, and so the running trial, was suspended."""
        self.stops += 1
        with contextlib.suppress(BlockingIOError):
            self._alarm_sender.send(b".")

    def _stop_deleted(self, *_: object) -> None:
        """Stop at a batch system's notice that the job was deleted, which comes before it is killed."""
        raise StopError(DELETED)

    def _check_current(self) -> None:
        current_attempt = self.files.read("attempt")
        if current_attempt != str(self.order.attempt):
            self.say(f"attempt {current_attempt} has taken over")
            raise StopError(0)

    def _check_nodes(self) -> None:
        """Check that every node has the files that the trials need, and that others do not use too much of it."""
        for report in self._inspect_nodes():
            seen, name = report["seen"], str(report["node"])
            self.say(f"{name} before the block: {json.dumps(seen)}")
            self.checks.append(seen)
            if (busy := float(seen["busy"])) > self.order.busy:
                programs = json.dumps(seen["others"])
                raise StopError(BUSY, f"{busy * 100:.0f} % of its CPUs are busy, these ran: {programs}", name)

    def _inspect_nodes(self, *, briefly: bool = False) -> list[dict[str, Any]]:
        """Return a report on each node. Raises StopError with the first path that a node cannot read."""
        if self.nodes:
            reports = self.nodes.inspect_all()
        else:
            missing = node_checks.first_missing(self.order.needs)
            seen = missing or briefly or node_checks.measure_node_load()
            reports = [{"node": self.node, "missing": missing, "seen": seen}]
        if not reports:
            raise StopError(_TASKS_FAILED, "srun could not start a task on each node")
        for node in reports:
            if node["missing"]:
                raise StopError(NOT_SEEN, str(node["missing"]), str(node["node"]))
        return reports

    def _run_part(self, part: Part) -> None:
        """Run a part, repeat it if its result does not count, and give its folder the final name."""
        before = repeated = 0
        while True:
            before += self._end_earlier_processes()
            outcomes = self._run_once(part)
            repeat_reason = self._repeat_reason(part, outcomes)
            if not repeat_reason or repeated == _REPEATS:
                break
            repeated += 1
            codes = ", ".join(f"{name} with status {outcome.status}" for name, outcome in outcomes.items())
            self.say(f"{part.name} ended ({codes}), but {repeat_reason}: it runs again")
        if any(not outcome.exit.ok for outcome in outcomes.values()):
            self._inspect_nodes(briefly=True)  # if a needed file is gone, the failure does not count and the job stops
        self._check_current()  # another attempt may have replaced this one in the meantime
        for trial in part.trials:
            self._write_end(part, trial, outcomes.get(trial.name, Outcome()), repeated, before)
            before = 0
        self._finish(part)

    def _end_earlier_processes(self) -> int:
        try:
            count = orphans.end_processes(self.mark)
        except orphans.CannotEndError as error:
            self.say(str(error))
            return 1
        if count:
            self.say(f"{count} processes of an earlier trial still ran and were ended")
        return count

    def _run_once(self, part: Part) -> dict[str, Outcome]:
        """Run a part in a new folder."""
        self.stops = 0
        with contextlib.suppress(BlockingIOError):
            while self.alarm.recv(64, socket.MSG_DONTWAIT):
                pass
        part_run = PartRun(self.order, part, self.files, self.job, self.mark, self.nodes, self.alarm, self.say)
        part_run.prepare()
        lines = [f"{trial.name} {self.order.attempt} {self.restarts} {self.job} {self.node}" for trial in part.trials]
        self.files.append("starts", "\n".join(lines))
        outcomes = part_run.run()
        if self.stops or any(outcome.status > 128 for outcome in outcomes.values()):
            interrupts.wait_readable([], _OWN_SIGNAL_S)
        return outcomes

    def _repeat_reason(self, part: Part, outcomes: Mapping[str, Outcome]) -> str:
        """Return why the part's result does not count although its trials are not at fault, otherwise ''."""
        if self.stops:
            return "it was suspended while it ran"
        if any(not outcome.exit.ok for outcome in outcomes.values()):
            try:
                (self.order.folder_of(part) / "end").open("ab").close()
            except OSError:
                return "its folder cannot be written"
        return ""

    def _write_end(self, part: Part, trial: TrialOrder, outcome: Outcome, repeated: int, before: int) -> None:
        body = {
            "job": self.job,
            "node": self.node,
            "status": outcome.status,
            "ooms": outcome.memory_kills,
            "epoch": int(outcome.epoch),
            "uptime": [outcome.up, outcome.up + outcome.exit.wall_s],
            "limit": trial.limit_s,
            "stops": self.stops,
            "repeated": repeated,
            "before": before,
            "checks": self.checks,
            "together": outcome.together,
            "late": int(outcome.exit.timed_out),
        }
        file = self.order.folder_of(part, trial) / "end"
        self.files.retry(f"write the end of {trial.name}", lambda: file.write_text(json.dumps(body), encoding="utf-8"))
        self.say(f"{trial.name} ended with status {outcome.status}")

    def _finish(self, part: Part) -> None:
        whole = self.order.folder_of(part)
        if part.turns:
            self.files.retry("remove a file", lambda: (whole / "end").unlink(missing_ok=True))
        for trial in part.trials:
            for name in (FOLDER, SCRATCH):
                remove_folder(self.order.folder_of(part, trial) / "work" / name)
        if not self.files.holds("node"):
            self.files.write_whole("node", self.node)
        if not self.files.holds(part.name):
            self.files.retry(f"rename {part.name}", lambda: whole.rename(self.files.folder / part.name))


def main(argv: list[str]) -> int:
    """Execute an order: ``ORDER NODE JOB RESTARTS [WORD...]``, or a task of it on one of several nodes (``srun``).

    ``alone``: the job waits until no other job of this user runs on this machine. ``leash``: the same, and it ends when
    its input closes, because then the connection that started it is gone. ``noticed``: SIGINT and SIGTERM say that the
    job was deleted (PBS, LSF).
    """
    if argv[0] in ("look", "rank"):
        order = read_order(Path(argv[1]))
        return inspect_task(order) if argv[0] == "look" else rank_task(order, *argv[2:])
    file, node, job, restarts, *words = argv
    if "leash" in words:
        threading.Thread(target=_end_with, args=(os.dup(0),), daemon=True).start()
    try:
        order = read_order(Path(file))
    except OSError:
        return CANNOT_WRITE
    try:
        with interrupts.handle_signals():
            runner = BlockRunner(order, Path(file), node, job, int(restarts))
            runner.notices = (signal.SIGINT, signal.SIGTERM) if "noticed" in words else ()
            with lock_host(runner.say) if words else contextlib.nullcontext():
                return runner.run()
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM


def _end_with(leash: int) -> None:
    while os.read(leash, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

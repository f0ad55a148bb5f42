"""The launcher ``ssh``: runs each block on one of the given hosts, over a connection that stays open."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.block import interrupts
from envmatrix.block.order import NO_PYTHON, OTHER_NODE
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Option, Work, refuse_engines_without_commands
from envmatrix.launchers.block_launcher import BlockLauncher, Trials, common_host
from envmatrix.launchers.node_start import STOPPED, find_lines, stop_reason
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.plan import Slot
from envmatrix.results import Trial
from envmatrix.system import host as host_facts
from envmatrix.system.host import Host
from envmatrix.system.process import Exit, Order, SupervisedProcess, parse_last_json, run
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.project import bench_folder
from envmatrix.trials.experiment import Experiment

if TYPE_CHECKING:
    from envmatrix.engines.base import Engine
    from envmatrix.matrix import Design
    from envmatrix.results.run import LauncherOptions

#: A connection without an answer for 15 s counts as dead. BatchMode: no password prompts.
_OPTIONS = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
)
_ANSWER_S, _FILES_S = 60.0, 0.5
#: Exit status of ssh if the connection could not be made, or broke.
_NO_CONNECTION = 255
#: Checks of the files after the end of a connection, because they may appear late.
_SETTLE = 3
_WEEK_S = 7 * 86400.0


class SshKind(LauncherKind):
    """The kind ``ssh``: hosts that your ssh reaches without a prompt, with its own names, keys and known hosts."""

    name = "ssh"
    takes_turns = True
    options = (Option("hosts", "HOST", "hosts as your ssh knows them, each for a block at a time", takes="names"),)

    def unavailable(self) -> str | None:
        """Return that there is no ssh on PATH, or None."""
        return None if shutil.which("ssh") else "no `ssh` on PATH: install an OpenSSH client"

    def width(self, design: Design, asked: LauncherOptions, span: int) -> int:
        """Return how many blocks run at the same time: one per host."""
        return len(requested_hosts(asked))

    def look(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> Host:
        """Check that every host answers, has a Python, and has the same CPU layout as the others."""
        refuse_engines_without_commands(self.name, engines)
        return common_host({name: _inspect_host(name) for name in requested_hosts(asked)}, "name hosts of one shape")

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher that connects to the hosts of the run."""
        return SshLauncher(experiment, progress)


def requested_hosts(asked: LauncherOptions) -> list[str]:
    """Return the hosts given with --hosts. Raises InputError if there are none, or one is not a valid host name."""
    hosts_option = asked.get("hosts", ())
    hosts = list(dict.fromkeys(hosts_option)) if isinstance(hosts_option, (tuple, list)) else [str(hosts_option)]
    if not hosts:
        raise InputError("--launcher ssh needs hosts", remedy="name them: `--hosts a,b`")
    bad_name = next((name for name in hosts if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*", name)), None)
    if bad_name is not None:
        raise InputError(f"--hosts: {bad_name!r} is no name of a host", remedy="such as node1, or me@node1")
    return hosts


def ssh_argv(host: str, script: str) -> list[str]:
    """Return the command that runs lines of ``sh`` on a host."""
    return ["ssh", *_OPTIONS, "--", host, f"exec sh -c {shlex.quote(script)}"]


def _host_program() -> str:
    """Return a Python program that prints the facts of the machine it runs on; it needs the standard library only."""
    source, names = (
        file.read_text(encoding="utf-8") for file in (Path(host_facts.__file__), bench_folder() / "processor.py")
    )
    return "\n".join((
        source,
        "import json, types",
        "names = types.ModuleType('processor')",
        f"exec({names!r}, vars(names))",
        "print(json.dumps(this_host(processor=names).to_json()))",
        "",
    ))  # fmt: skip


def _inspect_host(host: str) -> Host:
    """Return the facts that a host reports about itself."""
    script = "\n".join([*find_lines((), "", f"exit {NO_PYTHON}"), 'exec "$python" -I -S -'])
    finished = run(ssh_argv(host, script), limit_s=_ANSWER_S, input_text=_host_program())
    if finished.exit.code == NO_PYTHON:
        raise InputError(f"host {host}: {STOPPED[NO_PYTHON]}")
    try:
        facts = parse_last_json(finished.stdout)
        return Host(**{**facts, **{name: tuple(facts[name]) for name in ("cpus", "physical_cpus", "gpu_cpus")}})
    except (ValueError, TypeError, KeyError) as error:
        message = finished.last_words(1) or str(finished.exit)
        remedy = f"`ssh {host} true` must work in this shell without a question"
        raise InputError(f"host {host} cannot be used: {message}", remedy=remedy) from error


@dataclass
class _Connection:
    """A block that runs on a host. The host ends the block when ``leash`` closes, even if this process was killed."""

    host: str
    program: SupervisedProcess
    leash: int
    log: Path
    ended: int = 0


class SshLauncher(BlockLauncher[PendingBlock]):
    """Runs every block on one host; a host that does not answer is excluded, and its block goes to another."""

    name = "ssh"
    kind = PendingBlock

    def __init__(self, experiment: Experiment, progress: ProgressCallback) -> None:
        super().__init__(experiment, progress)
        self._hosts = requested_hosts(experiment.run.launcher_options)
        self._left_out: dict[str, str] = {}
        self._out: dict[int, _Connection] = {}

    @property
    def width(self) -> int:
        """How many blocks run at the same time."""
        return len(self._hosts)

    def interrupted(self) -> None:
        """Do nothing: the processes on the hosts ended with their connections."""

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Collect the results of an earlier start, then run blocks on all hosts until there are no more."""
        yield from self._adopt(work)
        try:
            yield from self._rounds(blocks, work)
        finally:
            for number in list(self._out):
                self._close_connection(number)

    @property
    def _working(self) -> int:
        return len(self._out)

    def _step(self, work: Work) -> Trials:
        yield from self._give_blocks(work)
        for number in list(self._out):
            yield from self._follow(number, work)
        interrupts.wait_readable([], _FILES_S)

    def _adopt(self, work: Work) -> Trials:
        """Collect the trials that ended after envmatrix stopped; their connection's end stopped the others."""
        for pending in self._known_blocks(work):
            self._pick_up(pending, runs=False)
            yield from self._collect(pending, work)

    def _give_blocks(self, work: Work) -> Trials:
        """Start waiting blocks on free hosts; a block that was started before returns to its host."""
        for pending in list(self._backlog):
            home, busy = pending.files.node, {connection.host for connection in self._out.values()}
            if home in self._left_out:
                self._backlog.remove(pending)
                self._say(f"block {pending.block} was begun on host {home}, which is left out; `resume` goes on later")
                continue
            free = [host for host in self._hosts if host not in busy and host not in self._left_out]
            if len(self._left_out) == len(self._hosts):
                raise self._no_host()
            host = next((host for host in free if host == home or not home), None)
            if host:
                self._backlog.remove(pending)
                yield from self._connect(pending, host, work)

    def _no_host(self) -> EngineError:
        said = "; ".join(f"{host}: {why}" for host, why in self._left_out.items())
        return EngineError(
            f"no host is left to run on ({said})", remedy="repair them, then `envmatrix resume`: nothing is lost"
        )

    def _connect(self, pending: PendingBlock, host: str, work: Work) -> Trials:
        parts = yield from self._begin(pending, work)
        if not parts:
            return
        lines = self._order_lines(pending, parts, '"$node" ssh 0 leash')
        argv = ssh_argv(host, "\n".join([f"node={shlex.quote(host)}", *lines]))
        log = pending.files.path / f"ssh-{pending.attempt}.log"
        theirs, leash = os.pipe()
        with log.open("wb") as file, os.fdopen(theirs, "rb") as stdin:
            program = SupervisedProcess(Order(argv, None, None, _WEEK_S), (stdin, file, file))
        pending.finished = 0
        self._pending_blocks[pending.block], self._out[pending.block] = pending, _Connection(host, program, leash, log)
        self._say(f"block {pending.block} runs on host {host}")

    def _close_connection(self, block: int) -> Exit:
        """Close a connection, which ends the processes on its host, and return its exit."""
        connection = self._out.pop(block)
        os.close(connection.leash)
        with connection.program as program:
            return program.answer()

    def _follow(self, block: int, work: Work) -> Trials:
        """Collect the trials that have ended, and handle a connection that ended early."""
        pending, connection = self._pending_blocks[block], self._out[block]
        yield from self._collect(pending, work)
        if not pending.slots or interrupts.wait_readable([connection.program], 0):
            connection.ended += 1
        if connection.ended and (not pending.slots or connection.ended >= _SETTLE):
            if self._pending_blocks.pop(block, None):
                self._set_block_aside(pending, connection, self._close_connection(block))
            else:
                self._close_connection(block)

    def _set_block_aside(self, pending: PendingBlock, connection: _Connection, ended: Exit) -> None:
        """Requeue a block whose connection ended early, and exclude the host if it caused that."""
        stopped = pending.files.stopped(pending.attempt)
        status, node, path = stopped or (ended.code, connection.host, "")
        reason = stop_reason(status, path)
        if status == _NO_CONNECTION:
            log_lines = connection.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = f"the connection ended: {log_lines[-1] if log_lines else 'nothing was said'}"
        excused = status in STOPPED or status == _NO_CONNECTION
        pending.files.note_end(pending.attempt, f"exit {status}", excused=excused)
        self._say(f"block {pending.block}: {len(pending.slots)} trial(s) not done on host {node}: {reason}")
        if excused and status != OTHER_NODE:
            self._left_out[connection.host] = reason
            self._say(f"host {connection.host} is left out: {reason}")
        self._send_again(pending, reason, blamed=not excused)

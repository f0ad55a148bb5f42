"""The launcher ``ssh``: runs each block on one of the given hosts, over a connection that stays open."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.block import interrupts
from envmatrix.block.block_instructions import NO_PYTHON, OTHER_NODE
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.base import Option
from envmatrix.launchers.batch_launcher import BatchKind
from envmatrix.launchers.batch_system import BatchSystem, QueuedJob, Submission, names_of
from envmatrix.launchers.block_start import STOPPED, module_and_python_lines, stop_reason
from envmatrix.launchers.pending_block import Loss
from envmatrix.system import host as host_facts
from envmatrix.system.host import Host
from envmatrix.system.process import Order, SupervisedProcess, parse_last_json, run
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.resource_paths import bench_folder

if TYPE_CHECKING:
    from envmatrix.results.run_model import LauncherOptions

#: A connection without an answer for 15 s counts as dead. BatchMode: no password prompts.
_SETTINGS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
_ANSWER_S = 60.0
#: Exit status of ssh if the connection could not be made, or broke.
_NO_CONNECTION = 255
_WEEK_S = 7 * 86400.0


def requested_hosts(asked: LauncherOptions) -> list[str]:
    """Return the hosts given with --hosts. Raises InputError if there are none, or one is not a valid host name."""
    hosts = list(dict.fromkeys(names_of(asked, "hosts")))
    if not hosts:
        raise InputError("--launcher ssh needs hosts", remedy="name them: `--hosts a,b`")
    bad_name = next((name for name in hosts if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*", name)), None)
    if bad_name is not None:
        raise InputError(f"--hosts: {bad_name!r} is no name of a host", remedy="such as node1, or me@node1")
    return hosts


def ssh_argv(host: str, script: str) -> list[str]:
    """Return the command that runs lines of ``sh`` on a host."""
    settings = [word for setting in _SETTINGS for word in ("-o", setting)]
    return ["ssh", "-T", *settings, "--", host, f"exec sh -c {shlex.quote(script)}"]


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
    script = "\n".join([*module_and_python_lines((), "", f"exit {NO_PYTHON}"), 'exec "$python" -I -S -'])
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
    """A block that runs on a host, which ends it when ``leash`` closes, even if this process was killed."""

    block: str
    program: SupervisedProcess
    leash: int
    log: Path

    def close(self) -> int:
        """End the processes on the host, and return ssh's exit status."""
        os.close(self.leash)
        with self.program as program:
            return program.answer().code


class Ssh(BatchSystem):
    """Hosts that each run a block over a connection, and the job's id is its host."""

    title = "ssh"
    commands = ("ssh",)
    exports = ()
    who = '"$node" ssh 0 leash'
    submitted = " runs on host {job}"
    label = "the connection to host {job}"
    polls = (0.0, 0.0)
    outlives = False

    def __init__(self, asked: LauncherOptions | None = None) -> None:
        super().__init__(asked)
        self._connections: dict[str, _Connection] = {}

    @property
    def width(self) -> int:
        """How many blocks run at the same time: one per host."""
        return len(requested_hosts(self.asked))

    def hosts(self, progress: ProgressCallback) -> dict[str, Host]:
        """Return the facts of every host; raise InputError for one that does not answer or has no Python."""
        return {name: _inspect_host(name) for name in requested_hosts(self.asked)}

    def jobs(self) -> list[QueuedJob]:
        """Return the blocks whose connections are open."""
        connections = self._connections.items()
        return [
            QueuedJob(host, connection.block, "", host)
            for host, connection in connections
            if not interrupts.wait_readable([connection.program], 0)
        ]

    def _free(self, left_out: Iterable[str]) -> list[str]:
        busy = {*left_out, *(job.host for job in self.jobs())}
        return [host for host in requested_hosts(self.asked) if host not in busy]

    def takes(self, home: str, left_out: Mapping[str, str]) -> bool:
        """Return whether the host that began a block is free, or any for a new one. EngineError: none is left."""
        if set(left_out) >= set(requested_hosts(self.asked)):
            reasons = "; ".join(f"{host}: {reason}" for host, reason in left_out.items())
            raise EngineError(
                f"no host is left to run on ({reasons})", remedy="repair them, then `envmatrix resume`: nothing is lost"
            )
        free = self._free(left_out)
        return home in free if home else bool(free)

    def submit(self, job: Submission) -> str:
        """Run a block on its host, or on the first free one, and return that."""
        host = job.home or self._free(job.avoid)[0]
        self.delete([host])
        script = f"node={shlex.quote(host)}\n{job.script.read_text(encoding='utf-8')}"
        theirs, leash = os.pipe()
        with job.log.open("wb") as file, os.fdopen(theirs, "rb") as stdin:
            program = SupervisedProcess(Order(ssh_argv(host, script), None, None, _WEEK_S), (stdin, file, file))
        self._connections[host] = _Connection(job.name, program, leash, job.log)
        return host

    def delete(self, jobs: Sequence[str]) -> None:
        """Close the connections to hosts."""
        for host in jobs:
            if connection := self._connections.pop(host, None):
                connection.close()

    def close(self) -> None:
        """Close all connections, which ends the processes on the hosts."""
        self.delete(list(self._connections))

    def loss(self, job: str) -> Loss:
        """Return why a connection ended; its host is left out if that is the cause."""
        connection = self._connections.pop(job)
        status = connection.close()
        reason = stop_reason(status)
        if status == _NO_CONNECTION:
            lines = connection.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = f"the connection ended: {lines[-1] if lines else 'nothing was said'}"
        excused = status in STOPPED or status == _NO_CONNECTION
        return Loss(f"exit {status}", reason, excused, bad_node=job if excused and status != OTHER_NODE else "")


class SshKind(BatchKind):
    """The kind ``ssh``: hosts that your ssh reaches without a prompt, with its own names, keys and known hosts."""

    name = "ssh"
    system = Ssh
    options = (Option("hosts", "HOST", "hosts as your ssh knows them, each for a block at a time", takes="names"),)

    def unavailable(self) -> str | None:
        """Return that there is no ssh on PATH, or None."""
        return None if shutil.which("ssh") else "no `ssh` on PATH: install an OpenSSH client"

"""Base of the commands of a batch system: what is submitted, and what the system says of its jobs and hosts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.base import Option
from envmatrix.launchers.pending_block import Loss
from envmatrix.system.host import Host
from envmatrix.system.process import Finished, run
from envmatrix.system.progress import ProgressCallback, silent

if TYPE_CHECKING:
    from envmatrix.results.run_model import LauncherOptions

_LIMIT_S = 60.0
_WORD = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_.:,=@*!&|+-]*\Z")

HOSTS = Option("hosts", "HOST", "hosts to use, each for a block at a time", takes="names")
#: Options of every batch system.
COMMON = (
    Option("nodes", "N", "how many nodes work at once, each on a block of its own"),
    Option("queue", "NAME", "queue, such as all.q or all.q@@group (qsub -q, bsub -q)"),
    Option("time", "TIME", "time limit of one block, such as 90s, 10m or 2h", takes="duration"),
    Option("modules", "NAME", "modules to load on the nodes", takes="names"),
)


class SilentError(EngineError):
    """A batch system does not answer; it may do so later."""


def ask(*argv: str, text: str | None = None) -> Finished:
    """Run a command of the batch system, with ``text`` as its input."""
    return run(argv, limit_s=_LIMIT_S, input_text=text)


def names_of(asked: LauncherOptions, name: str) -> tuple[str, ...]:
    """Return the names given with an option; () without it."""
    value = asked.get(name, ())
    return tuple(value) if isinstance(value, (tuple, list)) else (str(value),)


def json_object_or_empty(finished: Finished) -> dict[str, Any]:
    """Return the JSON that a command printed; {} if it is none."""
    try:
        body = json.loads(finished.stdout, strict=False)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def host_of_cpus(name: str, count: int, cores: int) -> Host:
    """Return a host with ``count`` CPUs of ``cores`` cores; their numbers are assumed as in ``slurm.client``."""
    cpus = tuple(range(count))
    return Host(name, None, None, None, None, cpus, cpus[:cores] or cpus, None, None, None)


@dataclass(frozen=True)
class QueuedJob:
    """A job that its batch system knows; ``state`` in its words, ``host``: where it runs, '' if it waits.

    ``release``: the command that lets it run, if it is held. ``failed``: it could not start, and never will. Slurm also
    has the ``reason`` why it waits or ended, and jobs that are not ``alive`` any more.
    """

    job: str
    name: str
    state: str
    host: str = ""
    release: str = ""
    failed: bool = False
    reason: str = ""
    alive: bool = True


@dataclass(frozen=True)
class Submission:
    """What is submitted for a block; ``home``: the host that began it ('': none), ``avoid``: hosts that failed."""

    name: str
    title: str
    script: Path
    log: Path
    seconds: int
    cpus: int = 1
    block: int = 0
    home: str = ""
    avoid: tuple[str, ...] = ()

    @property
    def job_title(self) -> str:
        """The run and the block, without characters that a batch system may not take."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.title)


class BatchSystem:
    """The commands of a batch system, for the options of a run.

    ``commands`` must be on PATH, and ``probe`` succeeds if it answers. ``narrow`` names the options that choose hosts.
    ``exports`` are variables that a script exports, with their defaults: its commands must be found as they are here.
    ``sets`` are lines of ``sh`` that set ``node``; ``who`` is the shell text for NODE JOB RESTARTS, followed by the
    words of the block runner. ``place`` is its word for a host, ``submitted`` and ``label`` are how messages name a
    job. ``polls`` are the least and the most seconds between checks of the queue, which everybody shares.
    ``outlives``: jobs go on without envmatrix.
    """

    title = ""
    narrow = "--hosts"
    commands: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()
    exports: tuple[tuple[str, str], ...] = (("PATH", os.defpath), ("HOME", "/"))
    sets: tuple[str, ...] = ()
    who = ""
    place = "host"
    submitted = ": job {job} in the queue"
    label = "job {job}"
    polls = (1.0, 30.0)
    outlives = True

    def __init__(self, asked: LauncherOptions | None = None) -> None:
        self.asked: LauncherOptions = asked or {}

    @property
    def width(self) -> int:
        """How many blocks run at the same time. Raises InputError for a wrong number of nodes."""
        text = str(self.asked.get("nodes", 1))
        if not text.isdecimal() or not 1 <= int(text) <= 1000:
            raise InputError(f"--nodes: {text!r} is no number of nodes", remedy="such as `--nodes 2`")
        return int(text)

    def silence(self) -> str | None:
        """Return why it does not answer; None if it does."""
        answer = ask(*self.probe)
        return None if answer.exit.ok else answer.last_words(1) or str(answer.exit)

    def values(self, name: str, allowed: re.Pattern[str] = _WORD) -> list[str]:
        """Return the values of an option. Raises InputError for a character that the submitting command refuses."""
        values, command = names_of(self.asked, name), self.commands[0]
        if wrong := next((value for value in values if not allowed.match(value)), None):
            raise InputError(f"--{name}: {wrong!r} is nothing that {command} takes", remedy=f"see `man {command}`")
        return list(values)

    def queue(self) -> list[str]:
        """Return the option and the name of the queue, if one was asked for."""
        return [word for name in self.values("queue") for word in ("-q", name)]

    def requested_resources(self) -> list[str]:
        """Return what was asked for, in the words of the batch system. Raises InputError for a bad value."""
        raise NotImplementedError

    def known_hosts(self) -> dict[str, Host | None]:
        """Return the hosts that fit the options; None: no job can start there now."""
        raise NotImplementedError

    def hosts(self, progress: ProgressCallback) -> dict[str, Host]:
        """Return the hosts that fit the options and answer; ``progress`` receives those that do not answer."""
        names = self.values("hosts")
        self.queue()
        self.requested_resources()
        known_hosts = self.known_hosts()
        names = names or list(known_hosts)
        hosts = {name: host for name in names if (host := known_hosts.get(name))}
        for name in sorted(set(names) - set(hosts)):
            progress(f"host {name} is left out: it does not answer")
        if not hosts:
            problem = f"no host answers: {', '.join(names)}" if names else f"{self.title} has no host for this"
            raise EngineError(problem, remedy=f"see `{self.commands[-1]}`, or choose other hosts with {self.narrow}")
        return hosts

    def jobs(self) -> list[QueuedJob] | None:
        """Return this user's unfinished jobs; None if it does not answer."""
        raise NotImplementedError

    def submit(self, job: Submission) -> str:
        """Submit a script and return the job's id."""
        raise NotImplementedError

    def delete(self, jobs: Sequence[str]) -> None:
        """Delete jobs; one that has ended meanwhile is not an error."""
        raise NotImplementedError

    def failure(self, job: QueuedJob) -> str:
        """Return why a job could not start."""
        return job.state

    def ended(self, job: str) -> str:
        """Return how a job that is no longer in the queue ended, '' if the batch system does not say."""
        return ""

    def loss(self, job: str) -> Loss:
        """Return why a job that did not stop by itself ended early."""
        cause = self.ended(job)
        return Loss(cause or "UNKNOWN", cause or f"it ended, and {self.title} no longer knows it")

    def takes(self, home: str, left_out: Mapping[str, str]) -> bool:
        """Return whether a block can be submitted now.

        ``home``: the host that began it, '' if none did; ``left_out``: hosts that failed, and why.
        """
        return True

    def close(self) -> None:
        """Release what is still held for jobs, at the end of a run."""

    def places(self, job: Submission) -> tuple[str, ...]:
        """Return the hosts that a block may run on; (): any. Raises EngineError if none is left."""
        if job.home:
            return (job.home,)
        names = names_of(self.asked, "hosts") or (tuple(self.hosts(silent)) if job.avoid else ())
        remaining = tuple(name for name in names if name not in job.avoid)
        if names and not remaining:
            raise EngineError(
                f"no host is left to run on ({', '.join(job.avoid)} failed)",
                remedy="repair them, then `envmatrix resume`: nothing is lost",
            )
        return remaining

    def answer(self, *argv: str, text: str | None = None) -> str:
        """Return the output of a command; raise an EngineError if it failed."""
        finished = ask(*argv, text=text)
        if not finished.exit.ok:
            raise EngineError(
                f"`{argv[0]}` failed: {finished.last_words(2)}",
                remedy=f"check the options of the launcher, and that {self.title} works here; "
                "`envmatrix resume` goes on",
            )
        return finished.stdout

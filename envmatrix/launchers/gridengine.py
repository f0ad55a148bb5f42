"""The launcher ``gridengine``: each block is one batch job on one host, and its files decide which trials are done."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envmatrix.block.order import DELETED, OTHER_NODE, Part
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Option, Work, refuse_engines_without_commands
from envmatrix.launchers.block_launcher import BlockLauncher, Trials, common_host
from envmatrix.launchers.block_orders import block_seconds, job_prefix
from envmatrix.launchers.node_start import stop_reason
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.plan import Slot
from envmatrix.plan.export_lines import posix_quote
from envmatrix.results import Trial, trial_of, write_whole
from envmatrix.system.host import Host
from envmatrix.system.process import Finished, run
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment

if TYPE_CHECKING:
    from envmatrix.engines.base import Engine
    from envmatrix.matrix import Design
    from envmatrix.results.run import LauncherOptions

_LIMIT_S = 60.0
#: Seconds between checks of the files, and of the queue.
_FILES_S, _QUEUE_S = 0.5, 5.0
#: Checks without the job after which it counts as ended, because files can appear late over NFS.
_SETTLE = 3
_WORD = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_.:,=@*!&|+-]*\Z")
_JOB = re.compile(r"<job_list .*?</job_list>", re.DOTALL)


class GridEngineKind(LauncherKind):
    """The kind ``gridengine``: batch jobs of Grid Engine (Son of Grid Engine 8.1; Univa and Altair take the same)."""

    name = "gridengine"
    takes_turns = True
    options = (
        Option("nodes", "N", "how many nodes work at once, each on a block of its own"),
        Option("queue", "NAME", "queue, such as all.q or all.q@@group (qsub -q)"),
        Option("pe", "NAME:SLOTS", "parallel environment and its slots: take all slots of a host (qsub -pe)"),
        Option("resources", "NAME=VALUE", "resources to ask for, such as h_vmem=4G (qsub -l)", takes="names"),
        Option("time", "TIME", "time limit of one block, such as 90s, 10m or 2h", takes="duration"),
        Option("modules", "NAME", "modules to load on the nodes", takes="names"),
    )

    def unavailable(self) -> str | None:
        """Return that Grid Engine is missing or does not answer; None if it can be used."""
        if shutil.which("qsub") is None or shutil.which("qhost") is None:
            return "no `qsub` and `qhost` on PATH: run envmatrix on a submit host of Grid Engine"
        done = _ask("qstat")
        return None if done.exit.ok else f"its master does not answer: {done.last_words(1) or done.exit}"

    def width(self, design: Design, asked: LauncherOptions, span: int) -> int:
        """Return how many blocks run at the same time."""
        return _width(asked)

    def look(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> Host:
        """Check that the queue has hosts that fit and answer, all with the same CPU layout."""
        refuse_engines_without_commands(self.name, engines)
        if reason := self.unavailable():
            raise EngineError(f"Grid Engine cannot be used: {reason}", remedy="run envmatrix where `qstat` works")
        names = _fitting_hosts(asked)
        hosts = {name: host for name, host in _read_hosts(_do("qhost", "-xml")).items() if name in names}
        for name in sorted(names - set(hosts)):
            progress(f"host {name} is left out: it does not answer")
        if not hosts:
            raise EngineError(f"no host answers: {', '.join(sorted(names))}", remedy="see `qhost`, or choose --queue")
        return common_host(hosts, "narrow them with --queue or --resources")

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher that submits the run's blocks."""
        return GridEngineLauncher(experiment, progress, ask)


def _ask(*argv: str) -> Finished:
    return run(argv, limit_s=_LIMIT_S)


def _do(*argv: str) -> str:
    done = _ask(*argv)
    if not done.exit.ok:
        raise EngineError(
            f"`{argv[0]}` failed: {done.last_words(2)}",
            remedy="check --queue, --pe and --resources, and that `qstat` works here; `envmatrix resume` goes on",
        )
    return done.stdout


def _width(asked: LauncherOptions) -> int:
    text = str(asked.get("nodes", 1))
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise InputError(f"--nodes: {text!r} is no number of nodes", remedy="such as `--nodes 2`")
    return int(text)


def requested(asked: LauncherOptions) -> list[str]:
    """Return the words of qsub and qselect for what was asked for. Raises InputError for a bad value."""
    resources = asked.get("resources", ())
    words = [*(resources if isinstance(resources, (tuple, list)) else [str(resources)])]
    pe, _, slots = str(asked.get("pe", "")).partition(":")
    for name, value in (("queue", str(asked.get("queue", ""))), ("pe", pe), *(("resources", word) for word in words)):
        if value and not _WORD.match(value):
            raise InputError(f"--{name}: {value!r} is nothing that qsub takes", remedy="see `man qsub`")
    if pe and not slots.isdecimal():
        raise InputError("--pe: a parallel environment and its slots are needed", remedy="such as `--pe smp:16`")
    return [
        *(("-q", str(asked["queue"])) if asked.get("queue") else ()),
        *(("-pe", pe, slots) if pe else ()),
        *(("-l", ",".join(words)) if words else ()),
    ]


def _fitting_hosts(asked: LauncherOptions) -> set[str]:
    """Return the hosts of the queues that have what was asked for; qselect takes no number of slots."""
    words = requested(asked)
    if "-pe" in words:
        del words[words.index("-pe") + 2]
    done = _ask("qselect", *words)
    names = {line.partition("@")[2] for line in done.stdout.split()}
    if not names:
        said = done.last_words(1) or "no queue fits"
        raise InputError(f"Grid Engine has no host for this: {said}", remedy="check --queue, --pe and --resources")
    return names


def _read_hosts(text: str) -> dict[str, Host]:
    """Parse the output of `qhost -xml`: the hosts that answer. CPU numbers are assumed as in ``slurm.client``."""
    found = {}
    for name, body in re.findall(r"<host name='([^']+)'>(.*?)</host>", text, re.DOTALL):
        values = dict(re.findall(r"<hostvalue name='(\w+)'>([^<]*)<", body))
        if values.get("load_avg", "-") == "-" or not values.get("num_proc", "").isdecimal():
            continue
        cpus = tuple(range(int(values["num_proc"])))
        cores = int(values["m_core"]) if values.get("m_core", "").isdecimal() else len(cpus)
        found[name] = Host(name, None, None, None, None, cpus, cpus[:cores] or cpus, None, None, None)
    return found


@dataclass(frozen=True)
class _State:
    """A job as qstat shows it; ``letters`` such as r (running), qw (waiting), hqw (held), Eqw (it could not start)."""

    job: str
    name: str
    letters: str
    host: str


def _read_queue(text: str) -> list[_State]:
    """Parse the output of `qstat -xml`."""
    states = []
    for body in _JOB.findall(text):
        values = dict(re.findall(r"<(\w+)>([^<]*)</", body))
        host = values.get("queue_name", "").partition("@")[2]
        states.append(_State(values["JB_job_number"], values["JB_name"], values.get("state", ""), host))
    return states


@dataclass
class _Job(PendingBlock):
    """A block that was submitted, and the job that runs it."""

    job: str = ""
    told: str = ""
    gone: int = 0


class GridEngineLauncher(BlockLauncher[_Job]):
    """Runs every block as one job; a host that cannot run one is excluded, and its block goes to another."""

    name = "gridengine"
    kind = _Job

    def __init__(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> None:
        super().__init__(experiment, progress)
        self._ask = ask
        self._asked = experiment.run.launcher_options
        self._prefix = job_prefix(experiment)
        self._left_out: set[str] = set()
        self._next_look = 0.0
        self._silent = False

    @property
    def width(self) -> int:
        """How many blocks run at the same time."""
        return _width(self._asked)

    def out(self) -> str:
        """Return a line about the jobs that continue."""
        names = [pending.job for pending in self._pending_blocks.values()]
        return f"job(s) {', '.join(names)} go on in Grid Engine" if names else ""

    def interrupted(self) -> None:
        """Ask whether to delete the jobs; if nobody can answer they continue, and ``resume`` collects them."""
        names = [pending.job for pending in self._pending_blocks.values()]
        if names and self._ask and self._ask(f"delete {len(names)} job(s) of this run?"):
            _ask("qdel", ",".join(names))
            self._say(f"deleted job(s) {', '.join(names)}; trials that have ended are kept")
        elif names:
            self._say(f"{self.out()}; `envmatrix resume` collects what they finish")

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Collect the results of earlier jobs, then keep jobs in the queue until there are no more blocks."""
        queue = self._queue()
        if queue is None:
            raise EngineError("Grid Engine does not answer", remedy="when `qstat` works here: `envmatrix resume`")
        for pending in self._known_blocks(work):
            state = queue.get(f"{self._prefix}{pending.files.path.name}")
            self._pick_up(pending, runs=state is not None)
            if state:
                self._watch(pending, state.job)
            yield from self._collect(pending, work)
        yield from self._rounds(blocks, work)

    def _step(self, work: Work) -> Trials:
        for pending in list(self._pending_blocks.values()):
            yield from self._collect(pending, work)
        if time.monotonic() >= self._next_look and (self._pending_blocks or self._backlog):
            self._next_look = time.monotonic() + _QUEUE_S
            queue = self._queue()
            if self._silent != (queue is None):
                self._say("Grid Engine does not answer; waiting" if queue is None else "Grid Engine answers again")
            self._silent = queue is None
            if queue is not None:
                yield from self._steer(queue, work)
        if self._working or self._backlog:
            time.sleep(_FILES_S)

    def _queue(self) -> dict[str, _State] | None:
        """Return this run's jobs in the queue by name; None if Grid Engine does not answer."""
        done = _ask("qstat", "-xml", "-u", getpass.getuser())
        states = _read_queue(done.stdout) if done.exit.ok else []
        return {state.name: state for state in states if state.name.startswith(self._prefix)} if done.exit.ok else None

    def _steer(self, queue: Mapping[str, _State], work: Work) -> Trials:
        """Submit waiting blocks, follow jobs, and handle those that ended early."""
        while self._backlog:
            pending = self._backlog.pop(0)
            if pending.files.node and pending.files.node in self._left_out:
                node = pending.files.node
                self._say(f"block {pending.block} was begun on host {node}, which is left out; `resume` goes on later")
            else:
                yield from self._submit(pending, work)
        for pending in list(self._pending_blocks.values()):
            yield from self._follow(pending, queue.get(f"{self._prefix}{pending.files.path.name}"), work)

    def _watch(self, pending: _Job, job: str) -> None:
        pending.job, pending.told, pending.gone, pending.finished = job, "", 0, 0
        self._pending_blocks[pending.block] = pending
        self._say(f"block {pending.block}: job {job} in the queue")

    def _submit(self, pending: _Job, work: Work) -> Trials:
        parts = yield from self._begin(pending, work)
        if not parts:
            return
        script, folder = pending.files.script(pending.attempt), pending.files.path
        write_whole(script, self._script(pending, parts))
        seconds = self._asked.get("time") or block_seconds(parts)
        node = pending.files.node or "&".join(f"!{name}" for name in sorted(self._left_out))
        resources = [f"h_rt={int(float(str(seconds)) + 0.5)}", *([f"hostname={node}"] if node else [])]
        words = requested(self._asked)
        log = folder / f"gridengine-{pending.attempt}.log"
        job = _do(
            *("qsub", "-terse", "-w", "e", "-r", "y", "-notify", "-S", "/bin/sh", "-j", "y", "-wd", "/"),
            *("-o", str(log), "-N", f"{self._prefix}{folder.name}", *words, "-l", ",".join(resources), str(script)),
        )
        self._watch(pending, job.split()[0])

    def _script(self, pending: _Job, parts: Sequence[Part]) -> str:
        modules = self._asked.get("modules", ())
        names = modules if isinstance(modules, (tuple, list)) else [str(modules)]
        variables = (("PATH", os.environ.get("PATH", os.defpath)), ("HOME", os.environ.get("HOME", "/")))
        lines = [
            "#!/bin/sh",
            "trap '' USR1  # the notice before a suspension; the one before the end (USR2) ends the block runner",
            *(f"export {name}={posix_quote(value)}" for name, value in variables),
            "node=${HOSTNAME:-$(uname -n)}",
            *self._order_lines(pending, parts, '"$node" "$JOB_ID" "${RESTARTED:-0}" alone', names),
        ]
        return "\n".join([*lines, ""])

    def _follow(self, pending: _Job, state: _State | None, work: Work) -> Trials:
        if state and "E" in state.letters:
            reason = re.search(r"error reason[^:]*:\s*(.*)", _ask("qstat", "-j", pending.job).stdout)
            _ask("qdel", pending.job)
            self._set_block_aside(pending, f"it could not start: {reason[1] if reason else state.letters}")
        elif state and not pending.files.stopped(pending.attempt):
            pending.gone = 0
            held = f"is held; `qrls {state.job}` lets it run"
            line = held if "h" in state.letters else f"is {state.letters} {state.host and f'on {state.host}'}".rstrip()
            if line != pending.told:
                self._say(f"block {pending.block}: job {state.job} {line}")
            pending.told = line
        else:
            pending.gone += 1
            yield from self._collect(pending, work)
            if pending.slots and (pending.gone >= _SETTLE or pending.files.stopped(pending.attempt)):
                self._set_block_aside(pending, "it ended, and Grid Engine no longer knows it (`qacct -j` may)")

    def _set_block_aside(self, pending: _Job, reason: str) -> None:
        """Requeue a block whose job ended early; exclude its host if that caused it."""
        self._pending_blocks.pop(pending.block, None)
        stopped = pending.files.stopped(pending.attempt)
        status, node, path = stopped or (0, "", "")
        if stopped:
            reason = stop_reason(status, path)
        left = len(pending.slots)
        self._say(f"block {pending.block}: job {pending.job} ended with {left} trial(s) not done: {reason}")
        pending.files.note_end(pending.attempt, f"exit {status}" if stopped else "UNKNOWN", excused=bool(stopped))
        if status == DELETED:
            return
        if stopped and status != OTHER_NODE:
            self._left_out.add(node)
            self._say(f"host {node} is left out: {reason}")
        self._send_again(pending, reason)
        self._next_look = 0.0

    def _lost_trial(self, slot: Slot, pending: _Job) -> Trial:
        reason = f"its job ended twice while it ran ({pending.files.last_cause()}); --time may be too short"
        return trial_of(slot, "failed", reason, node=pending.files.node)

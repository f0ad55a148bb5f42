"""Client for Slurm's commands. Their output is used to schedule and explain; only files decide what is done."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.block.block_instructions import CANNOT_WRITE
from envmatrix.errors import EngineError, InputError, suggestion
from envmatrix.launchers.batch_system import BatchSystem, QueuedJob, SilentError, host_of_cpus
from envmatrix.launchers.block_launcher import common_host
from envmatrix.launchers.slurm.partitions import Partition, read_partitions
from envmatrix.matrix import Slurm
from envmatrix.system.host import Host
from envmatrix.system.process import Finished, run

_LIMIT_S, _PROBE_S = 60.0, 15.0
#: Messages of commands if slurmctld does not answer (src/common/slurm_errno.c).
_SILENT = re.compile(r"[Uu]nable to contact slurm controller|Socket timed out|Connection refused")
#: Message of sbatch for a job that exceeds a limit now or always; submitting it is the only way to find out.
_POLICY = "violates accounting/QOS policy"
_OVERRIDES = re.compile(r"(SBATCH_|SQUEUE_|SINFO_|SCANCEL_|SACCT_|SLURM_(?!CONF))")
#: Name and comment of the job that looks for a Python on idle nodes, and its memory, which is far less than a node's.
_CHECK, _CHECK_MIB = "envmatrix-check", 256
#: Signal in the exit code of a job whose node cannot open the file of its output (0:53).
_NO_OUTPUT = "53"
#: States in which a job may still run (or run again).
_ALIVE = re.compile(
    "PENDING|CONFIGURING|RUNNING|COMPLETING|SUSPENDED|REQUEUED|REQUEUE_HOLD|REQUEUE_FED|RESIZING|SIGNALING|STAGE_OUT|"
    "STOPPED|SPECIAL_EXIT|RESV_DEL_HOLD"
)
#: Reasons (squeue's %r) of a job that starts only after `scontrol release`.
_HELD = re.compile(r"held|Held|JobHoldMaxRequeue")
#: Reason after `scontrol requeuehold` of a running job, also used for some launch failures of a job that never began.
REQUEUED_BY_SOMEBODY = "job requeued in held state"
#: States of a node that can take jobs, now or when it is free (sinfo(1)).
_USABLE = re.compile(
    "idle|mix(ed)?|alloc(ated)?|comp(leting)?|plnd|planned|resv|reserved|reboot|powering_up|pow_up|powered_down|pow_dn"
)


@dataclass(frozen=True)
class Node:
    """A node as reported by sinfo. ``threads`` is per core."""

    name: str
    partition: str
    default: bool
    state: str
    cpus: int
    threads: int
    memory_bytes: int
    features: frozenset[str]
    reason: str

    @property
    def usable(self) -> bool:
        """Whether jobs can start on it, now or when it is free."""
        return bool(_USABLE.fullmatch(self.state.rstrip("~#!%$@^-+")))

    @property
    def undetermined(self) -> bool:
        """Whether slurmctld has just started and does not know the node's state yet (UNKNOWN in sinfo(1))."""
        return self.state.rstrip("*").startswith("unk")


def command_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that override options of a script or change an output format."""
    return {name: value for name, value in variables.items() if not _OVERRIDES.match(name)}


def read_queue(text: str) -> list[QueuedJob]:
    """Parse the output of squeue in the form id|name|state|node|reason."""
    rows = (line.split("|", 4) for line in text.splitlines())
    return [queued_job(job, _name(job, name), *more) for job, name, *more in (row for row in rows if len(row) == 5)]


def _name(job: str, name: str) -> str:
    """Return a job's name; that of a task of an array job, such as 7_3, gets its number."""
    task = re.fullmatch(r"\d+_(\d+)", job)
    return f"{name}{int(task[1]):04d}" if task else name


def queued_job(job: str, name: str, state: str, nodes: str, reason: str) -> QueuedJob:
    """Return a job with what its state and reason mean."""
    held = state in ("REQUEUE_HOLD", "SPECIAL_EXIT") or (state == "PENDING" and _HELD.search(reason))
    release = f"scontrol release {job}" if held else ""
    alive = bool(_ALIVE.fullmatch(state))
    return QueuedJob(job, name, state, ",".join(expand(nodes)), release, reason=reason, alive=alive)


def expand(text: str) -> list[str]:
    """Return the nodes of Slurm's short form: n[1-2,04],m -> n1, n2, n04, m."""
    names = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        names += _expand_one(part)
    return names


def _expand_one(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, tail = rest.partition("]")
    numbers = []
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        numbers += [f"{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)]
    return [f"{head}{number}{after}" for number in numbers for after in _expand_one(tail)]


def read_nodes(text: str) -> list[Node]:
    """Parse the output of sinfo, with one line per node and partition."""
    rows = (line.split("|", 7) for line in text.splitlines())
    return [_node(row) for row in rows if len(row) == 8]


def _node(row: list[str]) -> Node:
    name, partition, state, cpus, threads, memory, features, reason = row
    words = [] if features in ("(null)", "") else features.split(",")
    return Node(
        name,
        partition.rstrip("*"),
        partition.endswith("*"),
        state,
        _count(cpus),
        _count(threads),
        _count(memory) * 2**20,
        frozenset(words),
        "" if reason == "none" else reason,
    )


def _count(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


class SlurmClient(BatchSystem):
    """Calls sbatch, squeue, sinfo, scancel and, if accounting is set up, sacct."""

    title = "Slurm"
    place = "node"

    def _run(
        self, *argv: str, cwd: Path | None = None, limit_s: float = _LIMIT_S, input_text: str | None = None
    ) -> Finished:
        if not shutil.which(argv[0]):
            raise EngineError(
                f"there is no Slurm here: no `{argv[0]}` on PATH",
                remedy="run this on a login node of the cluster (some need `module load slurm`)",
            )
        return run(argv, limit_s=limit_s, env=command_variables(os.environ), cwd=cwd, input_text=input_text)

    def silence(self) -> str | None:
        """Return that Slurm's controller does not answer; None if it does."""
        answer = self._run("sinfo", "--noheader", "--format=%P", limit_s=_PROBE_S)
        return None if answer.exit.ok else f"its controller does not answer: {answer.last_words(1) or answer.exit}"

    def nodes(self, options: Slurm) -> list[Node]:
        """Return the nodes that the options allow. InputError: wrong options. SilentError: Slurm does not answer."""
        answer = self._run("sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%c|%Z|%m|%f|%E")
        if not answer.exit.ok:
            raise SilentError(
                f"Slurm does not answer: {answer.last_words(2)}",
                remedy="`sinfo` must work in this shell; is this a login node of the cluster?",
            )
        all_nodes = read_nodes(answer.stdout)
        partitions = {node.partition for node in all_nodes}
        if options.partition and not set(options.partition.split(",")) <= partitions:
            unknown = next(name for name in options.partition.split(",") if name not in partitions)
            raise InputError(f"Slurm has no partition {unknown!r}", remedy=suggestion(unknown, partitions))
        nodes = {node.name: node for node in all_nodes if _asked_for(node, options)}
        if not nodes and (options.constraint or not options.nodelist):
            raise InputError("no node of Slurm fits what was asked for", remedy="check --partition and --constraint")
        missing = [name for name in options.nodelist if name not in nodes]
        if missing:
            raise InputError(f"there is no node {missing[0]!r} to be had", remedy=suggestion(missing[0], nodes))
        return list(nodes.values())

    def partitions(self) -> list[Partition]:
        """Return all partitions; none if Slurm does not report them."""
        if not shutil.which("scontrol"):
            return []
        answer = self._run("scontrol", "--oneliner", "show", "partition")
        return read_partitions(answer.stdout) if answer.exit.ok else []

    def refusal(self, script: str) -> str:
        """Return Slurm's message if it would reject such a job, otherwise ''. Submits nothing."""
        answer = self._run("sbatch", "--test-only", cwd=Path("/"), input_text=script)
        message = re.sub(r"sbatch: (error: )?", "", answer.last_words(3))
        is_unsure = answer.exit.timed_out or _SILENT.search(message) or _POLICY in message
        return "" if answer.exit.ok or is_unsure else message

    def run_now(self, options: Slurm, nodes: list[str], script: str) -> str:
        """Run a script on these idle nodes at once and return its output; '' if Slurm would start it later."""
        if not nodes or not shutil.which("srun"):
            return ""
        asked = {"partition": options.partition, "account": options.account, "nodelist": ",".join(nodes)}
        argv = [
            *("srun", "--immediate=5", "--quiet", "--chdir=/", f"--job-name={_CHECK}", f"--comment={_CHECK}"),
            *("--time=1", f"--mem={_CHECK_MIB}M", "--mpi=none", "--ntasks-per-node=1", f"--nodes={len(nodes)}"),
            *(f"--{name}={value}" for name, value in asked.items() if value),
        ]
        return self._run(*argv, "sh", "-c", script).stdout

    def has_no_running_job(self) -> bool:
        """Return whether no job of this user has any resources now."""
        answer = self._run("squeue", "--me", "--noheader", "--states=R,CF,CG,S,ST,SI,SO,RS", "--format=%i")
        return answer.exit.ok and not answer.stdout.strip()

    def submit_script(self, script: Path, log: Path | None = None, tasks: Sequence[int] = ()) -> str:
        """Submit a script and return the job's id. EngineError: Slurm rejects it. SilentError: it does not answer.

        ``log`` is for what a job says before the block runner opens its own log; sbatch cannot take all paths. With
        ``tasks`` it is an array job, and the log of task 7 is in the folder b0007 beside that of ``log``.
        """
        options = [f"--array={','.join(map(str, tasks))}"] if tasks else []
        if log and "\\" not in str(log):
            folder = Path(str(log.parent).replace("%", "%%"))
            options.append(f"--output={(folder.with_name('b%4a') if tasks else folder) / log.name}")
        answer = self._run("sbatch", "--parsable", *options, str(script), cwd=Path("/"))
        job = answer.stdout.strip().split(";")[0]
        if not answer.exit.ok or not job:
            message = re.sub(r"sbatch: (error: )?", "", answer.last_words(3))
            if answer.exit.timed_out or _SILENT.search(message):
                raise SilentError(f"Slurm does not answer: {message}", remedy="when it does: `envmatrix resume`")
            raise EngineError(
                f"Slurm refused the job: {message}",
                remedy="check partition, account, constraint, time and your quota; nothing is lost, "
                "`envmatrix resume` goes on",
            )
        return job

    def jobs(self) -> list[QueuedJob] | None:
        """Return this user's jobs; None if Slurm does not answer."""
        answer = self._run("squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%j|%T|%N|%r")
        return read_queue(answer.stdout) if answer.exit.ok else None

    def past_state(self, job: str) -> str:
        """Return the final state of a job from accounting; '' if there is none or it does not know the job."""
        if not shutil.which("sacct"):
            return ""
        answer = self._run("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State")
        words = answer.stdout.split() if answer.exit.ok else []
        return words[0] if words else ""

    def exit_status(self, job: str) -> int | None:
        """Return the exit status of a job's script from slurmctld; None if it no longer knows it."""
        answer = self._run("scontrol", "--oneliner", "show", "job", job)
        codes = re.search(r" ExitCode=(\d+):(\d+)", answer.stdout) if answer.exit.ok else None
        if codes and codes[2] == _NO_OUTPUT:
            return CANNOT_WRITE
        return int(codes[1]) if codes else None

    def delete(self, jobs: Sequence[str]) -> None:
        """Cancel jobs; one that has ended meanwhile is not an error."""
        self._run("scancel", *jobs)


def _asked_for(node: Node, options: Slurm) -> bool:
    in_partition = node.partition in options.partition.split(",") if options.partition else node.default
    named = not options.nodelist or node.name in options.nodelist
    plain = options.constraint if options.constraint and re.fullmatch(r"[\w.-]+", options.constraint) else None
    return in_partition and named and (plain is None or plain in node.features)


def nodes_host(nodes: list[Node]) -> Host:
    """Describe the usable nodes as one machine, for templates such as {physical_cores}.

    NUMA nodes and memory are unknown here: a socket may have several NUMA nodes, and memory is a configured value.
    CPU numbers assume that Linux numbers the first hardware thread of every core first. On other machines, the checks
    of an environment that places threads report it.
    """
    hosts = {
        node.name: host_of_cpus(node.name, node.cpus, node.cpus // max(1, node.threads))
        for node in sorted(nodes, key=lambda node: node.name)
        if node.usable
    }
    if not hosts:
        states = "; ".join(f"{node.name} is {node.state} {node.reason}".strip() for node in nodes)
        raise EngineError(f"no node can take jobs: {states}", remedy="choose another partition, or wait")
    return common_host(
        hosts, "narrow them with --constraint or --partition, or name them in `slurm: {nodelist: [...]}`"
    )

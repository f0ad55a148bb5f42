"""The launcher ``gridengine``: the commands of Grid Engine."""

from __future__ import annotations

import getpass
import re
from collections.abc import Sequence

from envmatrix.errors import InputError
from envmatrix.launchers.base import Option
from envmatrix.launchers.batch_launcher import BatchKind
from envmatrix.launchers.batch_system import COMMON, BatchSystem, QueuedJob, Submission, ask, host_of_cpus
from envmatrix.system.host import Host

_JOB = re.compile(r"<job_list .*?</job_list>", re.DOTALL)


class GridEngine(BatchSystem):
    """Grid Engine (Son of Grid Engine 8.1; Univa and Altair take the same)."""

    title = "Grid Engine"
    narrow = "--queue or --resources"
    commands = ("qsub", "qstat", "qhost")
    probe = ("qstat",)
    sets = (
        "trap '' USR1  # the notice before a suspension; the one before the end (USR2) ends the block runner",
        "node=${HOSTNAME:-$(uname -n)}",
    )
    who = '"$node" "$JOB_ID" "${RESTARTED:-0}" alone'

    def known_hosts(self) -> dict[str, Host | None]:
        """Return the hosts of the queues that have what was asked for; None: it does not answer."""
        names, hosts = self._fitting_hosts(), _read_hosts(self.answer("qhost", "-xml"))
        return {name: hosts.get(name) for name in names}

    def _fitting_hosts(self) -> set[str]:
        words = self.requested_resources()
        if "-pe" in words:  # qselect takes no number of slots
            del words[words.index("-pe") + 2]
        answer = ask("qselect", *words)
        names = {line.partition("@")[2] for line in answer.stdout.split()}
        if not names:
            message = f"Grid Engine has no host for this: {answer.last_words(1) or 'no queue fits'}"
            raise InputError(message, remedy="check --queue, --pe and --resources")
        return names

    def requested_resources(self) -> list[str]:
        """Return the words of qsub and qselect for what was asked for. Raises InputError for a bad value."""
        resources = self.values("resources")
        pe, _, slots = "".join(self.values("pe")).partition(":")
        if pe and not slots.isdecimal():
            raise InputError("--pe: a parallel environment and its slots are needed", remedy="such as `--pe smp:16`")
        return [*self.queue(), *(("-pe", pe, slots) if pe else ()), *(("-l", ",".join(resources)) if resources else ())]

    def jobs(self) -> list[QueuedJob] | None:
        """Return this user's unfinished jobs; None if Grid Engine does not answer."""
        answer = ask("qstat", "-xml", "-u", getpass.getuser())
        return _read_queue(answer.stdout) if answer.exit.ok else None

    def submit(self, job: Submission) -> str:
        """Submit a script and return the job's id. The queue decides whether the job may be rerun (no -r)."""
        host = job.home or "&".join(f"!{name}" for name in job.avoid)
        resources = [f"h_rt={job.seconds}", *([f"hostname={host}"] if host else [])]
        answer = self.answer(
            *("qsub", "-terse", "-w", "e", "-notify", "-S", "/bin/sh", "-j", "y", "-wd", "/", "-o", str(job.log)),
            *("-N", job.name, "-ac", f"comment={job.job_title}", *self.requested_resources()),
            *("-l", ",".join(resources), str(job.script)),
        )
        return answer.split()[0]

    def delete(self, jobs: Sequence[str]) -> None:
        """Delete jobs."""
        ask("qdel", ",".join(jobs))

    def failure(self, job: QueuedJob) -> str:
        """Return why a job could not start."""
        reason = re.search(r"error reason[^:]*:\s*(.*)", ask("qstat", "-j", job.job).stdout)
        return reason[1] if reason else job.state


class GridEngineKind(BatchKind):
    """The kind ``gridengine``: batch jobs of Grid Engine."""

    name = "gridengine"
    system = GridEngine
    options = (
        *COMMON,
        Option("pe", "NAME:SLOTS", "parallel environment and its slots: take all slots of a host (qsub -pe)"),
        Option("resources", "NAME=VALUE", "resources to ask for, such as h_vmem=4G (qsub -l)", takes="names"),
    )


def _read_hosts(text: str) -> dict[str, Host]:
    """Parse the output of `qhost -xml`: the hosts that answer."""
    hosts = {}
    for name, body in re.findall(r"<host name='([^']+)'>(.*?)</host>", text, re.DOTALL):
        values = dict(re.findall(r"<hostvalue name='(\w+)'>([^<]*)<", body))
        cpus, cores = values.get("num_proc", ""), values.get("m_core", "")
        if values.get("load_avg", "-") != "-" and cpus.isdecimal():
            hosts[name] = host_of_cpus(name, int(cpus), int(cores) if cores.isdecimal() else 0)
    return hosts


def _read_queue(text: str) -> list[QueuedJob]:
    """Parse the output of `qstat -xml`. Its states: r (runs), qw (waits), hqw (held), Eqw (it could not start)."""
    jobs = []
    for body in _JOB.findall(text):
        values = dict(re.findall(r"<(\w+)>([^<]*)</", body))
        job, letters, host = values["JB_job_number"], values.get("state", ""), values.get("queue_name", "")
        release = f"qrls {job}" if "h" in letters else ""
        jobs.append(QueuedJob(job, values["JB_name"], letters, host.partition("@")[2], release, "E" in letters))
    return jobs

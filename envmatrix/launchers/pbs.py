"""The launcher ``pbs``: the commands of OpenPBS and PBS Professional.

Options, states and output are those of qsub(1B), qselect(1B), qstat(1B), pbsnodes(8B) and pbs_job_attributes(7B) in
https://github.com/openpbs/openpbs (doc/). Experimental: it never ran on a real PBS.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from envmatrix.launchers.base import Option
from envmatrix.launchers.batch_launcher import BatchKind
from envmatrix.launchers.batch_system import (
    COMMON,
    HOSTS,
    BatchSystem,
    QueuedJob,
    Submission,
    ask,
    host_of_cpus,
    json_object_or_empty,
)
from envmatrix.system.host import Host
from envmatrix.system.process import Finished

#: States of a vnode on which no job starts soon (pbs_node_attributes(7B)).
_GONE = {"down", "offline", "stale", "state-unknown", "unresolvable", "provisioning", "wait-provisioning"}


class Pbs(BatchSystem):
    """OpenPBS or PBS Professional: each job takes a whole host. envmatrix submits a lost block again, not PBS."""

    title = "PBS"
    commands = ("qsub", "qselect", "pbsnodes")
    probe = ("pbsnodes", "-a", "-F", "json")
    sets = ("node=$(uname -n); node=${node%%.*}  # PBS calls a host by its short name",)
    who = '"$node" "$PBS_JOBID" 0 alone noticed'

    def known_hosts(self) -> dict[str, Host | None]:
        """Return all hosts; None: no job can start there."""
        return _read_hosts(ask(*self.probe))

    def jobs(self) -> list[QueuedJob] | None:
        """Return this user's unfinished jobs; None if PBS does not answer."""
        answer = ask("qselect", "-u", getpass.getuser())
        if not answer.exit.ok:
            return None
        ids = answer.stdout.split()
        return _read_jobs(ask("qstat", "-f", "-F", "json", *ids)) if ids else []

    def requested_resources(self) -> list[str]:
        """Return the resources that were asked for, as parts of a chunk."""
        return self.values("resources")

    def submit(self, job: Submission) -> str:
        """Submit a script and return the job's id."""
        chunk = self.requested_resources()
        if not any(word.startswith("ncpus=") for word in chunk):
            chunk.insert(0, f"ncpus={job.cpus}")
        if places := self.places(job):  # a chunk can name one host, and none to avoid
            chunk.append(f"host={places[job.block % len(places)]}")
        answer = self.answer(
            *("qsub", "-N", job.name, "-S", "/bin/sh", "-r", "n", "-m", "n", "-j", "oe", "-k", "oed"),
            *("-o", str(job.log), *self.queue()),
            *("-l", ":".join(["select=1", *chunk]), "-l", "place=exclhost", "-l", f"walltime={job.seconds}"),
            str(job.script),
        )
        return answer.split()[0]

    def delete(self, jobs: Sequence[str]) -> None:
        """Delete jobs."""
        ask("qdel", *jobs)


class PbsKind(BatchKind):
    """The kind ``pbs``: batch jobs of OpenPBS or PBS Professional. Experimental."""

    name = "pbs"
    experimental = True
    system = Pbs
    options = (
        *COMMON,
        HOSTS,
        Option("resources", "NAME=VALUE", "resources to ask for, such as mem=8gb (qsub -l select)", takes="names"),
    )


def _read_hosts(answer: Finished) -> dict[str, Host | None]:
    """Parse the output of `pbsnodes -a -F json`; None: no job can start there."""
    hosts: dict[str, Host | None] = {}
    for vnode, body in json_object_or_empty(answer).get("nodes", {}).items():
        resources = body.get("resources_available", {})
        name, count = str(resources.get("host", vnode)), resources.get("ncpus")
        states = {word.strip() for word in str(body.get("state")).split(",")}
        works = isinstance(count, int) and count > 0 and not states & _GONE
        hosts[name] = host_of_cpus(name, count, count) if works else None
    return hosts


def _read_jobs(answer: Finished) -> list[QueuedJob] | None:
    """Parse the output of `qstat -f -F json`; job_state: Q (waits), R (runs), H (held), S (suspended), E (ends).

    A job that has just ended is an error on stderr, and not in the output.
    """
    body = json_object_or_empty(answer)
    if not body or "cannot connect" in answer.stderr:
        return None
    jobs = []
    for job, values in body.get("Jobs", {}).items():
        state, host = str(values.get("job_state")), str(values.get("exec_host", "")).split("/")[0]
        release = f"qrls {job}" if state == "H" else ""
        jobs.append(QueuedJob(job, str(values.get("Job_Name")), state, host, release))
    return jobs

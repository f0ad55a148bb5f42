"""The launcher ``lsf``: the commands of IBM Spectrum LSF 10.1.

Options, states and output are those of bsub, bjobs, bkill and lshosts in IBM's command reference
(https://www.ibm.com/docs/en/spectrum-lsf/10.1.0). Experimental: it never ran on a real LSF.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envmatrix.errors import EngineError, InputError
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

#: A resource requirement, such as rusage[mem=4096] or select[type==any].
_REQUIREMENT = re.compile(r"[A-Za-z0-9(][ -~]*\Z")


class Lsf(BatchSystem):
    """LSF: each job takes a whole host (-x). envmatrix submits a lost block again, not LSF (-rn)."""

    title = "LSF"
    commands = ("bsub", "bjobs", "lshosts")
    probe = ("lshosts", "-o", "HOST_NAME nprocs ncores nthreads server", "-json")
    sets = ("node=${LSB_HOSTS%% *}; node=${node:-$(uname -n)}",)
    who = '"$node" "$LSB_JOBID" 0 alone noticed'

    def known_hosts(self) -> dict[str, Host | None]:
        """Return all hosts that run jobs; None: it does not answer."""
        return _read_hosts(ask(*self.probe))

    def jobs(self) -> list[QueuedJob] | None:
        """Return this user's unfinished jobs; None if LSF does not answer."""
        answer = ask("bjobs", "-o", "jobid job_name stat exec_host", "-json")
        if body := json_object_or_empty(answer):
            return _read_jobs(body)
        return [] if "No unfinished job found" in answer.stdout + answer.stderr else None

    def requested_resources(self) -> list[str]:
        """Return the words of bsub for the slots and resources that were asked for."""
        slots = str(self.asked.get("slots", ""))
        if slots and not slots.isdecimal():
            raise InputError(f"--slots: {slots!r} is no number of job slots", remedy="such as `--slots 16`")
        needs = self.values("resources", _REQUIREMENT)
        return [*(("-n", slots, "-R", "span[hosts=1]") if slots else ()), *(word for n in needs for word in ("-R", n))]

    def submit(self, job: Submission) -> str:
        """Submit a script, which bsub reads from its input, and return the job's id."""
        minutes, places = max(1, -(-job.seconds // 60)), self.places(job)
        answer = self.answer(
            *("bsub", "-J", job.name, "-Jd", job.job_title, "-cwd", "/", "-oo", str(job.log), "-rn", "-x"),
            *("-W", f"{minutes // 60}:{minutes % 60:02d}", *self.queue(), *self.requested_resources()),
            *(("-m", " ".join(places)) if places else ()),
            text=job.script.read_text(encoding="utf-8"),
        )
        match = re.search(r"Job <(\d+)> is submitted", answer)
        if not match:
            raise EngineError(f"`bsub` named no job: {answer.strip()[:200]}", remedy="see `bjobs`")
        return match[1]

    def delete(self, jobs: Sequence[str]) -> None:
        """Kill jobs."""
        ask("bkill", *jobs)


class LsfKind(BatchKind):
    """The kind ``lsf``: batch jobs of IBM Spectrum LSF. Experimental."""

    name = "lsf"
    experimental = True
    system = Lsf
    options = (
        *COMMON,
        HOSTS,
        Option("slots", "N", "job slots of a host: take all of them (bsub -n)"),
        Option("resources", "TEXT", "resource requirements, such as rusage[mem=8GB] (bsub -R)", takes="names"),
    )


def _read_hosts(answer: Finished) -> dict[str, Host | None]:
    """Parse the output of `lshosts -json`: processors, cores of one, threads of a core ('-': it does not answer)."""
    hosts: dict[str, Host | None] = {}
    for record in json_object_or_empty(answer).get("RECORDS", []):
        values = {name.lower(): str(value) for name, value in record.items()}
        name, counts = values.get("host_name", ""), [values.get(key, "") for key in ("nprocs", "ncores", "nthreads")]
        processors, cores, threads = (int(count) if count.isdecimal() else 0 for count in counts)
        if values.get("server", "Yes").lower() != "no":
            cpus = processors * cores * threads
            hosts[name] = host_of_cpus(name, cpus, processors * cores) if cpus else None
    return hosts


def _read_jobs(body: dict[str, object]) -> list[QueuedJob]:
    """Parse the output of `bjobs -o ... -json`; EXEC_HOST: 16*host, or host:host:..."""
    records = body.get("RECORDS")
    jobs = []
    for record in records if isinstance(records, list) else []:
        job, state = str(record.get("JOBID")), str(record.get("STAT"))
        host = str(record.get("EXEC_HOST", "")).split(":")[0].rpartition("*")[2]
        release = f"bresume {job}" if state == "PSUSP" else ""
        jobs.append(QueuedJob(job, str(record.get("JOB_NAME")), state, host, release))
    return jobs

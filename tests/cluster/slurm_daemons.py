"""A real Slurm of two nodes on this machine: loopback only, started and ended by the test session."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol", "scancel")
_CONF = """\
ClusterName=envmatrix
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/{tracking}
TaskPlugin={tasks}
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=0
SlurmdTimeout=20
KillWait=2
MinJobAge=600
Licenses=machine:1
Prolog={folder}/prolog
SlurmdParameters=config_overrides
{accounting}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {shape}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {shape}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=short Nodes=ALL MaxTime=1 State=UP OverSubscribe=NO
"""
_CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
"""


def missing() -> str:
    """Return what is missing for a real Slurm on this machine, or '' if nothing is."""
    return missing_system("Slurm", PROGRAMS)


def missing_system(system: str, programs: Sequence[str]) -> str:
    """Return why a batch system with these programs cannot be started here, or ''."""
    absent = [name for name in programs if not shutil.which(name)]
    if absent:
        return f"{system} is not installed (no {absent[0]}); .ci/slurm installs it on Debian"
    return "" if os.getuid() == 0 else f"starting {system}'s daemons needs root"


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a daemon, by force if it takes more than 20 seconds."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_ports(how_many):
    sockets = [socket.socket() for _ in range(how_many)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _descendants(pid):
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [*(deeper for child in children for deeper in _descendants(child)), *children]


def wait_for(condition, seconds=60.0, what="it"):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come within {seconds:.0f} s")


class Nowhere:
    """Stand-in for a cluster, for a project that runs on this machine only."""

    def __init__(self):
        self.variables = dict(os.environ)


class Cluster:
    """The daemons of a cluster: munged, slurmctld and two slurmd, each a child of the test session."""

    accounting = "AccountingStorageType=accounting_storage/none"

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="envmatrix-slurm-", dir="/tmp"))
        self.conf = self.folder / "slurm.conf"
        self.processes = {}
        self.variables = {**os.environ, "SLURM_CONF": str(self.conf)}
        #: Memory is limited only if Slurm's cgroup plugin works here.
        self.confines_memory = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()

    def start(self):
        for name in ("munge", "state", "log", "spool.n1", "spool.n2"):
            (self.folder / name).mkdir()
        for name in (".", "munge"):
            (self.folder / name).chmod(0o755)
        self._write_configuration()
        prolog = self.folder / "prolog"
        prolog.write_text(f'#!/bin/sh\n[ ! -e "{self.folder}/no-job-starts-on-$SLURMD_NODENAME" ]\n')
        prolog.chmod(0o755)
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o600)
        self._spawn(
            "munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket", f"--seed-file={munge}/s",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", "--num-threads=2",
        )  # fmt: skip
        wait_for((munge / "socket").exists, 10, "munged")
        self.start_accounting()
        self.start_controller(clean=True)
        for node in ("n1", "n2"):
            self.start_node(node)
        self.wait_idle()

    def start_accounting(self):
        """Do nothing: this cluster has no accounting."""

    def _write_configuration(self):
        (self.folder / "cgroup.conf").write_text(_CGROUP)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        shape = (
            f"CPUs={os.cpu_count()} Sockets=1 CoresPerSocket={os.cpu_count()} ThreadsPerCore=1 "
            f"RealMemory={memory * 9 // 10} State=UNKNOWN"
        )
        self.conf.write_text(
            _CONF.format(
                accounting=self.accounting.format(folder=self.folder), folder=self.folder,
                host=socket.gethostname().split(".")[0], ports=free_ports(3), shape=shape,
                tracking="cgroup" if self.confines_memory else "linuxproc",
                tasks="task/cgroup,task/affinity" if self.confines_memory else "task/affinity",
            )
        )  # fmt: skip

    def _spawn(self, name, *arguments, key=None, **variables):
        log = (self.folder / f"{key or name}.out").open("ab")
        self.processes[key or name] = subprocess.Popen(
            [shutil.which(name), *arguments], env={**self.variables, **variables}, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def start_controller(self, *, clean=False):
        self._spawn("slurmctld", "-D", *(["-c"] if clean else []))
        wait_for(lambda: self.ask("scontrol", "ping").returncode == 0, 30, "slurmctld")

    def stop(self, key):
        process = self.processes.pop(key, None)
        if process is not None:
            end(process)

    def kill(self, key):
        process = self.processes.pop(key)
        process.kill()
        process.wait()

    def start_node(self, node, hidden=()):
        """Start a node's slurmd; it does not see what is in the folders ``hidden``, nor files among them."""
        if not hidden:
            self._spawn("slurmd", "-D", "-N", node, key=node)
            return
        covers = [
            f"mount {'-t tmpfs -o ro none' if path.is_dir() else '--bind /dev/null'} {shlex.quote(str(path))}"
            for path in hidden
        ]
        covered = " && ".join([*covers, 'exec slurmd -D -N "$1"'])
        self._spawn("unshare", "--mount", "sh", "-c", covered, "sh", node, key=node)

    def break_prolog(self, node):
        """Make every job fail to start on a node, until ``clean``."""
        (self.folder / f"no-job-starts-on-{node}").touch()

    def take_license(self):
        """Take the license; jobs that need it wait until the returned job is cancelled."""
        asked = ("--parsable", "--licenses=machine:1", "--output=/dev/null", "--wrap=sleep 3600")
        job = self.do("sbatch", *asked).strip()
        wait_for(lambda: self.jobs("running"), 30, "the job that has the license")
        return job

    def ask(self, *argv):
        return subprocess.run(argv, env=self.variables, capture_output=True, text=True, timeout=60, check=False)

    def do(self, *argv):
        done = self.ask(*argv)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def jobs(self, states="pending,running,completing"):
        text = self.ask("squeue", "--noheader", f"--states={states}", "--format=%i|%T|%N|%j").stdout
        return [tuple(line.split("|")) for line in text.splitlines()]

    def node_states(self):
        text = self.ask("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%N|%T").stdout
        return dict(line.split("|") for line in text.splitlines())

    def wait_idle(self):
        wait_for(lambda: set(self.node_states().values()) == {"idle"}, 60, "two idle nodes")

    def clean(self):
        """Restore the cluster for the next test: no jobs, both nodes idle."""
        for mark in self.folder.glob("no-job-starts-on-*"):
            mark.unlink()
        if "slurmctld" not in self.processes:
            self.start_controller()
        for node in ("n1", "n2"):
            if node not in self.processes:
                self.start_node(node)
        jobs = [job for job, *_ in self.jobs()]
        if jobs:
            self.ask("scancel", *jobs)
        wait_for(lambda: not self.jobs(), 60, "an empty queue")
        for node, state in self.node_states().items():
            if state != "idle":
                self.ask("scontrol", "update", f"nodename={node}", "state=resume")
        self.wait_idle()

    def close(self):
        jobs = [job for job, *_ in self.jobs()]
        if jobs:
            self.ask("scancel", *jobs)
            wait_for(lambda: not self.jobs(), 30, "an empty queue")
        for key in ("n1", "n2", "slurmctld", "slurmdbd", "mariadbd", "munged"):
            self.stop(key)
        self._kill_left()
        wait_for(lambda: not self.left(), 20, f"the end of {self.left()}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill_left(self):
        """Kill this cluster's leftover steps (a killed slurmd loses track of them), with all their processes."""
        for pid, _ in self.left():
            for one in (*_descendants(pid), pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(one), signal.SIGKILL)

    def left(self):
        """Return this cluster's processes that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                ours = str(self.folder).encode() in path.read_bytes()
                name = (path.parent / "comm").read_text().strip()
            except OSError:
                continue
            if ours and name in ("munged", "slurmctld", "slurmd", "slurmstepd", "slurmdbd", "mariadbd"):
                found.append((path.parent.name, name))
        return found

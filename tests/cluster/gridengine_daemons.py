"""A real Grid Engine of two hosts on this machine: network namespaces with made-up names."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.slurm_daemons import end, free_ports, missing_system, wait_for
from tests.cluster.ssh_hosts import Network

_PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qstat", "qdel", "qconf", "qhost", "qselect", "qmod", "ip")
_SHARE, _LIB = Path("/usr/share/gridengine"), Path("/usr/lib/gridengine")
_BOOTSTRAP = """\
admin_user              root
default_domain          none
ignore_fqdn             true
spooling_method         berkeleydb
spooling_lib            libspoolb
spooling_params         {folder}/spool/db
binary_path             /usr/sbin
qmaster_spool_dir       {folder}/spool/qmaster
security_mode           none
listener_threads        1
worker_threads          1
scheduler_threads       1
"""
_PE = """\
pe_name smp
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""

_QUEUE = """\
qname all.q
hostlist left right
seq_no 0
load_thresholds NONE
suspend_thresholds NONE
nsuspend 1
suspend_interval 00:05:00
priority 0
min_cpu_interval 00:05:00
processors UNDEFINED
qtype BATCH
ckpt_list NONE
pe_list smp
rerun FALSE
slots {cpus}
tmpdir /tmp
shell /bin/sh
prolog NONE
epilog NONE
shell_start_mode unix_behavior
starter_method NONE
suspend_method NONE
resume_method NONE
terminate_method NONE
notify 00:00:02
owner_list NONE
user_lists NONE
xuser_lists NONE
subordinate_list NONE
complex_values NONE
projects NONE
xprojects NONE
calendar NONE
initial_state default
"""
_QUEUE += "".join(
    f"{hardness}_{what} INFINITY\n"
    for what in ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")
    for hardness in ("s", "h")
)


def missing() -> str:
    """Return what is missing for a real Grid Engine on this machine, or '' if nothing is."""
    return missing_system("Grid Engine", _PROGRAMS)


class GridEngine(Network):
    """The master, on this machine, and an execution daemon on each host. ``variables`` let commands reach them."""

    net = 232

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="envmatrix-ge-", dir="/tmp"))
        master, executing = free_ports(2)
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.variables = {
            **os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "SGE_ROOT": f"{self.folder}/root",
            "SGE_CELL": "default", "SGE_QMASTER_PORT": str(master), "SGE_EXECD_PORT": str(executing), "SGE_ND": "1",
        }  # fmt: skip

    def start(self) -> None:
        for name in ("root/default/common", "spool/qmaster/job_scripts", "spool/execd", "spool/db", "bin"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.folder / "root/util").symlink_to(_SHARE / "util")
        me = socket.gethostname()
        common = self.folder / "root/default/common"
        (common / "bootstrap").write_text(_BOOTSTRAP.format(folder=self.folder))
        (common / "act_qmaster").write_text(f"{me}\n")
        self._write_spool()
        pairs = {name: self.addresses(name) for name in self.names}
        others = "".join(f"{theirs} {name}\n" for name, (_, theirs) in pairs.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 {me} localhost\n{others}")
        for program in ("qsub", "qstat", "qdel", "qconf", "qhost", "qselect", "qmod", "qalter", "qrls", "qacct"):
            file = self.folder / "bin" / program
            run = f'mount --bind {self.folder}/hosts /etc/hosts; exec /usr/bin/{program} "$@"'
            file.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{run}' {program} \"$@\"\n")
            file.chmod(0o755)
        self._spawn("master", f"mount --bind {self.folder}/hosts /etc/hosts; exec /usr/sbin/sge_qmaster")
        wait_for(lambda: self.ask("qconf", "-sh").returncode == 0, 30, "the master")
        self.do("qconf", "-as", me)
        for name, (ours, theirs) in pairs.items():
            self.wire(name)
            (self.folder / f"hosts-{name}").write_text(f"{ours} {me}\n{theirs} {name}\n127.0.0.1 localhost\n")
            self.do("qconf", "-ah", name)
            self.start_host(name)
        self._configure()
        wait_for(lambda: "-" not in self.loads().values(), 60, "two hosts that answer")

    def _write_spool(self) -> None:
        text = (_SHARE / "default-configuration").read_text()
        for key, value in {
            "execd_spool_dir": f"{self.folder}/spool/execd", "min_uid": "0", "min_gid": "0", "max_unheard": "00:00:20",
            "gid_range": "50700-50800", "load_report_time": "00:00:02",
        }.items():  # fmt: skip
            text = re.sub(rf"(?m)^{key}\s.*", f"{key} {value}", text)
        (self.folder / "configuration").write_text(text)
        self.do(str(_LIB / "spoolinit"), "berkeleydb", "libspoolb", f"{self.folder}/spool/db", "init")
        for what, file in (
            ("configuration", self.folder / "configuration"), ("complexes", _SHARE / "util/resources/centry"),
            ("usersets", _SHARE / "util/resources/usersets"), ("managers", "root"),
        ):  # fmt: skip
            self.do(str(_LIB / "spooldefaults"), what, str(file))

    def _configure(self) -> None:
        (self.folder / "pe").write_text(_PE)
        self.do("qconf", "-Ap", str(self.folder / "pe"))
        (self.folder / "queue").write_text(_QUEUE.format(cpus=os.cpu_count()))
        self.do("qconf", "-Aq", str(self.folder / "queue"))
        text = self.do("qconf", "-ssconf")
        for key, value in {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}.items():
            text = re.sub(rf"(?m)^{key}\s.*", f"{key} {value}", text)
        (self.folder / "scheduler").write_text(text)
        self.do("qconf", "-Msconf", str(self.folder / "scheduler"))

    def _spawn(self, key: str, script: str, *before: str) -> None:
        log = (self.folder / f"{key}.log").open("ab")
        self.daemons[key] = subprocess.Popen(
            [*before, "unshare", "--mount", "--uts", "sh", "-ec", script], env=self.variables, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def start_host(self, name: str, before: str = "") -> None:
        """Start a host's daemon, after the lines of sh in ``before``."""
        lines = [
            f"hostname {name}", f"mount --bind {self.folder}/hosts-{name} /etc/hosts", "mount -t tmpfs none /dev/shm",
            before, "exec /usr/sbin/sge_execd",
        ]  # fmt: skip
        self._spawn(name, "\n".join(lines), "ip", "netns", "exec", f"{self.mark}{name}")

    def stop(self, key: str) -> None:
        end(self.daemons.pop(key))

    def ask(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env=self.variables, capture_output=True, text=True, timeout=60, check=False)

    def do(self, *argv: str) -> str:
        done = self.ask(*argv)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def loads(self) -> dict[str, str]:
        rows = [line.split() for line in self.ask("qhost").stdout.splitlines()]
        return {row[0]: row[6] for row in rows if row and row[0] in self.names} or {"none": "-"}

    def jobs(self, states: str = "") -> list[str]:
        """Return the ids of all jobs, or those whose state has one of these letters."""
        rows = [line.split() for line in self.ask("qstat", "-u", "*").stdout.splitlines()[2:]]
        return [row[0] for row in rows if not states or set(states) & set(row[4])]

    def clean(self) -> None:
        """Restore the cluster for the next test: no jobs, both hosts answer."""
        if jobs := self.jobs():
            self.ask("qdel", "-f", ",".join(jobs))
            wait_for(lambda: not self.jobs(), 60, "an empty queue")
        for name in self.names:
            if name not in self.daemons:
                self.start_host(name)
        self.ask("qmod", "-cq", "*")
        wait_for(lambda: "-" not in self.loads().values(), 60, "two hosts that answer")

    def close(self) -> None:
        if jobs := self.jobs():
            self.ask("qdel", "-f", ",".join(jobs))
        for key in (*self.names, "master"):
            if key in self.daemons:
                self.stop(key)
        for pid, _ in self.left():
            os.kill(pid, signal.SIGKILL)
        self.unwire()
        shutil.rmtree(self.folder, ignore_errors=True)

    def left(self) -> list[tuple[int, str]]:
        """Return this cluster's processes that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                ours = f"SGE_ROOT={self.folder}".encode() in path.read_bytes()
                name = (path.parent / "comm").read_text().strip()
            except OSError:
                continue
            if ours and name.startswith("sge_"):
                found.append((int(path.parent.name), name))
        return found

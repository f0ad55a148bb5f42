"""Two hosts for ssh tests: network namespaces of this machine, each with a real sshd; they share its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.slurm_daemons import wait_for

_SSHD = """\
Port 2222
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
"""
_SSH = """\
Host {name}
  HostName {address}
  Port 2222
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
"""
#: ssh, which finds the hosts; it asks after a silent one every 2 seconds where the launcher has it ask every 5.
_PROGRAM = """\
#!/bin/sh
for word do
    shift
    [ "$word" != ServerAliveInterval=5 ] || word=ServerAliveInterval=2
    set -- "$@" "$word"
done
exec {ssh} -F {folder}/config "$@"
"""


def missing() -> str:
    """Return what is missing on this machine to make such hosts, '' if nothing is."""
    if not shutil.which("sshd") or not shutil.which("ip"):
        return "there is no sshd, or no ip(8); .ci/slurm installs them on Debian"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "network namespaces need root"


class Network:
    """Hosts ``left`` and ``right``: network namespaces of this machine, each at the other end of a cable."""

    names = ("left", "right")
    net = 231

    def __init__(self) -> None:
        self.mark = f"e{self.net % 10}{os.getpid() % 10000}"

    def addresses(self, name: str) -> tuple[str, str]:
        """Return this machine's address on the cable to a host, and the host's."""
        number = os.getpid() % 128 * 2 + self.names.index(name)  # two test sessions have networks of their own
        start = f"10.{self.net}.{number}"
        return f"{start}.1", f"{start}.2"

    def wire(self, name: str) -> None:
        ours, theirs = self.addresses(name)
        inside = ("ip", "-n", f"{self.mark}{name}")
        self._do("ip", "netns", "add", f"{self.mark}{name}")
        self._do("ip", "link", "add", f"{self.mark}{name[0]}", "type", "veth", "peer", "name", "em0",
                 "netns", f"{self.mark}{name}")  # fmt: skip
        self._do("ip", "address", "add", f"{ours}/30", "dev", f"{self.mark}{name[0]}")
        self._do("ip", "link", "set", f"{self.mark}{name[0]}", "up")
        self._do(*inside, "address", "add", f"{theirs}/30", "dev", "em0")
        for link in ("lo", "em0"):
            self._do(*inside, "link", "set", link, "up")

    def unwire(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", f"{self.mark}{name}"], check=False, timeout=60)

    @staticmethod
    def _do(*argv: str) -> None:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, timeout=60)


class Hosts(Network):
    """Hosts with sshd; their ``variables`` let commands reach them, as for the Slurm cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="envmatrix-ssh-", dir="/tmp"))
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.variables = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def start(self) -> None:
        for key in ("host", "user"):
            self._do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        Path("/run/sshd").mkdir(exist_ok=True)
        (self.folder / "bin").mkdir()
        ssh = self.folder / "bin" / "ssh"
        ssh.write_text(_PROGRAM.format(ssh=shutil.which("ssh"), folder=self.folder))
        ssh.chmod(0o755)
        public = " ".join((self.folder / "host.pub").read_text().split()[:2])
        for name in self.names:
            self.wire(name)
            _, address = self.addresses(name)
            facts = {"name": name, "address": address, "folder": self.folder}
            with (self.folder / "config").open("a") as file:
                file.write(_SSH.format(**facts))
            with (self.folder / "known").open("a") as file:
                file.write(f"[{address}]:2222 {public}\n")
            (self.folder / f"sshd-{name}").write_text(_SSHD.format(**facts))
            self.start_host(name)

    def start_host(self, name: str, before: str = "") -> None:
        """Start a host's sshd in its own mount namespace, after the lines of sh in ``before``."""
        run = f"mount -t tmpfs none /dev/shm\n{before}\nexec {shutil.which('sshd')} -D -e -f {self.folder}/sshd-{name}"
        argv = ["ip", "netns", "exec", f"{self.mark}{name}", "unshare", "--mount", "sh", "-ec", run]
        log = (self.folder / f"sshd-{name}.log").open("ab")
        self.daemons[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: self.ask(name, "true") == 0, 60, f"sshd of {name}")

    def stop_host(self, name: str) -> None:
        process = self.daemons.pop(name)
        process.terminate()
        process.wait(20)

    def ask(self, name: str, command: str) -> int:
        argv = [str(self.folder / "bin" / "ssh"), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", name, command]
        return subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode

    def cut(self, name: str) -> None:
        """Disconnect a host from the network."""
        self._do("ip", "link", "set", f"{self.mark}{name[0]}", "down")

    def join(self, name: str) -> None:
        self._do("ip", "link", "set", f"{self.mark}{name[0]}", "up")
        wait_for(lambda: self.ask(name, "true") == 0, 60, f"the network of {name}")

    def left(self) -> list[str]:
        """Return the hosts whose sshd still runs."""
        return [name for name, process in self.daemons.items() if process.poll() is None]

    def close(self) -> None:
        for name in list(self.daemons):
            self.stop_host(name)
        self.unwire()
        shutil.rmtree(self.folder, ignore_errors=True)

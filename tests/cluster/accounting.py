"""A real Slurm with accounting: MariaDB and slurmdbd, on sockets and the loopback interface only."""

import shutil
import subprocess

from tests.cluster.slurm_daemons import Cluster, free_ports, wait_for

PROGRAMS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db")
_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
CommunicationParameters=NoInAddrAny
"""


def missing():
    """Return what is missing for accounting, or '' if nothing is."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    return f"{absent[0]} is not installed; .ci/slurm installs it on Debian" if absent else ""


class AccountedCluster(Cluster):
    """A cluster whose jobs need an account and whose finished jobs are listed by sacct."""

    def __init__(self):
        super().__init__()
        self.port = free_ports(1)[0]
        self.accounting = (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={self.port}\nAccountingStoragePass={{folder}}/munge/socket\n"
            "AccountingStorageEnforce=associations,limits"
        )

    def start_accounting(self):
        """Create an empty database, start both daemons, and add an account for root."""
        database = self.folder / "db"
        socket = database / "socket"
        database.mkdir()
        shutil.chown(database, "mysql")
        with (self.folder / "log" / "install").open("wb") as log:
            subprocess.run(
                ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={database}", "--skip-test-db",
                 "--auth-root-authentication-method=socket"], check=True, stdout=log, stderr=log,
            )  # fmt: skip
        self._spawn(
            "mariadbd", "--no-defaults", "--user=mysql", f"--datadir={database}", f"--socket={socket}",
            f"--pid-file={database}/pid", "--skip-networking", "--innodb-buffer-pool-size=64M",
            "--innodb-lock-wait-timeout=900",
        )  # fmt: skip
        wait_for(lambda: self.ask("mariadb-admin", "-S", str(socket), "ping").returncode == 0, 60, "mariadbd")
        made = "create database slurm_acct_db; create user slurm@localhost; "
        self.do("mariadb", "-S", str(socket), "-e", made + "grant all on slurm_acct_db.* to slurm@localhost")
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(_CONF.format(folder=self.folder, port=self.port))
        conf.chmod(0o600)
        self._spawn("slurmdbd", "-D", MYSQL_UNIX_PORT=str(socket))
        wait_for(lambda: self.ask("sacctmgr", "-i", "add", "cluster", "envmatrix").returncode == 0, 60, "slurmdbd")
        self.do("sacctmgr", "-i", "add", "account", "lab", "Description=lab", "Organization=lab")
        self.do("sacctmgr", "-i", "add", "user", "root", "Account=lab", "DefaultAccount=lab")

    def limit(self, **limits):
        """Set limits of root's account, such as MaxSubmitJobs=1 (-1: no limit)."""
        words = [f"{name}={value}" for name, value in limits.items()]
        self.do("sacctmgr", "-i", "modify", "user", "root", "set", *words)

    def past(self, job):
        """Return the final state of a job according to sacct."""
        return self.do("sacct", "-n", "-P", "-X", "-j", job, "-o", "State").strip()

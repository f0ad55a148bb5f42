"""Run a command with a real two-node Slurm: `python -m tests.cluster COMMAND...`."""

import signal
import subprocess
import sys

from tests.cluster.slurm_daemons import Cluster, missing


def main() -> int:
    if not sys.argv[1:] or missing():
        sys.exit(missing() or __doc__)
    cluster = Cluster()
    try:
        cluster.start()
        process = subprocess.Popen(sys.argv[1:], env=cluster.variables)
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command; the daemons end after it
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()
    finally:
        cluster.close()


if __name__ == "__main__":
    sys.exit(main())

"""What the block runner reads of its node."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from envmatrix.block import node_checks


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a program as another user")
def test_only_programs_of_the_own_user_are_named(monkeypatch):
    monkeypatch.setattr(node_checks, "_MOST_NAMED", 10_000)  # other tests run programs too
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        Path(folder).chmod(0o755)
        names = [f"{who}-{os.getpid()}" for who in ("mine", "theirs")]  # at most 15 characters: those of the kernel
        programs = [shutil.copy2(shutil.which("sh"), Path(folder, name)) for name in names]
        started = [
            subprocess.Popen([program, "-c", "while :; do :; done"], user=user)
            for program, user in zip(programs, (0, 65534), strict=True)
        ]
        try:
            seen, until = set(), time.monotonic() + 30
            while names[0] not in seen and time.monotonic() < until:
                seen = {name for _ in range(20) for name in node_checks._running_programs()}
        finally:
            for process in started:
                process.kill()
                process.wait()
    assert (names[0] in seen, names[1] in seen) == (True, False)

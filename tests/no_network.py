"""Commands on a machine that has no network, nothing in its cache and no package lists."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_NOWHERE = "http://127.0.0.1:9"


def reproduce(archive: Path, folder: Path, cache: Path) -> str:
    """Reproduce a pack in ``folder`` without a network, with ``cache``; return what the command says."""
    start = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*start, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace without a network can be made here")
    (folder / "apt.conf").write_text(f'Dir::State::Lists "{folder}/lists";\n')
    variables = {
        "ENVMATRIX_CACHE": str(cache),
        "APT_CONFIG": str(folder / "apt.conf"),
        "UV_OFFLINE": "1",
        "PIP_INDEX_URL": _NOWHERE,
        "PIP_RETRIES": "0",
    }
    argv = [*start, sys.executable, "-m", "envmatrix", "reproduce", str(archive)]
    done = subprocess.run(
        argv, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 3), done.stderr  # 3: an effect of so few blocks is not reproduced
    return done.stderr

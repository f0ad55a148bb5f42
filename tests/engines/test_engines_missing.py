"""Messages about an engine that is missing, or that this user may not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.build.paths import BuildPaths
from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.docker import DockerEngine
from envmatrix.errors import EngineError
from tests.engines.conftest import IMAGE, Said


@pytest.mark.parametrize(
    ("host", "words"),
    [("unix:///nonexistent/docker.sock", "nothing listens"), ("tcp://127.0.0.1:9", "is down")],
)
def test_an_engine_that_is_not_there_says_what_to_do(
    places: BuildPaths, monkeypatch: pytest.MonkeyPatch, host: str, words: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    engine = DockerEngine(places)
    assert words in str(engine.unavailable())
    with pytest.raises(EngineError, match="preparing an image"):
        engine.prepare(IMAGE, (), Said())


def test_an_engine_without_permission_says_what_to_do(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a socket of somebody else's cannot be made")
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); "
        "os.chmod(sys.argv[1], 0o600); os.environ['DOCKER_HOST'] = 'unix://' + sys.argv[1]; "
        "from envmatrix.engines.docker_api import why_not; os.setuid(65534); print(why_not())"
    )
    tmp_path.chmod(0o755)
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code, folder / "s"], capture_output=True, text=True)
    assert "no permission" in done.stdout, done.stderr


@pytest.mark.apptainer
def test_without_apptainer_the_reason_says_where_to_get_it(places: BuildPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "apptainer.org" in str(ApptainerEngine(places).unavailable())

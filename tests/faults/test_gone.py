"""A trial whose process never started does not count: what is missing is rebuilt, or the run stops."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import demand
from tests.faults.conftest import Toy, until

pytestmark = [pytest.mark.timeout(900)]


def lengthen(file: Path) -> None:
    """Append to a file: a SIF still starts."""
    with file.open("ab") as image:
        image.write(bytes(4096))


@pytest.mark.parametrize(
    ("engine", "images", "harm"),
    [
        ("local", "venvs/*/bin/python", Path.unlink),
        pytest.param("apptainer", "sif/*/image.sif", Path.unlink, marks=pytest.mark.apptainer),
        pytest.param("apptainer", "sif/*/image.sif", lengthen, marks=pytest.mark.apptainer),
    ],
)
def test_an_image_that_is_removed_or_overwritten_in_the_middle_is_made_again(
    toy: Toy, engine: str, images: str, harm: Callable[[Path], None]
) -> None:
    process = toy.start("bench", "held", "--environments", "baseline", "--engine", engine)
    toy.let_end()
    until(toy.programs, 400)
    for file in toy.cache.glob(images):
        harm(file)
    err = toy.let_all_end(process)
    assert process.returncode == 0, err
    assert "rebuilding it" in err
    assert [(trial["trial"], trial["outcome"]) for trial in toy.trials()] == [(name, "ok") for name in toy.planned()]


class Daemon:
    """A separate Docker daemon for a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder / 'docker.sock'}"

    def start(self) -> None:
        options = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
        argv = ["dockerd", "--bridge=none", "--iptables=false", "-H", self.host]
        argv += [word for option, name in options.items() for word in (option, str(self.folder / name))]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        until(lambda: self.docker("info").returncode == 0)

    def docker(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", "--host", self.host, *words], capture_output=True, check=False)

    def remove_image(self) -> None:
        """Remove the toy's image; Docker refuses that while a container uses it."""
        until(lambda: not self.docker("ps", "-q").stdout)
        name = self.docker("images", "-q", "envmatrix/image-image-plain").stdout.decode().strip()
        removed = self.docker("rmi", "--force", name)
        assert removed.returncode == 0, removed.stderr

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    demand(
        None if shutil.which("dockerd") and os.getuid() == 0 else "a Docker daemon of our own needs dockerd and root"
    )
    made = Daemon(tmp_path_factory.mktemp("docker"))
    made.start()
    yield made
    made.stop()


def give_image(toy: Toy, daemon: Daemon) -> None:
    """Build the toy's image with the daemon that all tests share, and load it into another one."""
    built = toy.run("build", "held", "--engine", "docker")
    assert built.returncode == 0, built.stderr
    ours, tags = built.stdout.split()[-1], "{{range .RepoTags}}{{.}} {{end}}"  # others may have images with this name
    name = subprocess.run(["docker", "inspect", "-f", tags, ours], capture_output=True, text=True, check=True)
    saved = subprocess.Popen(["docker", "save", name.stdout.split()[0]], stdout=subprocess.PIPE)
    subprocess.run(["docker", "--host", daemon.host, "load"], stdin=saved.stdout, check=True, capture_output=True)
    saved.wait()


@pytest.mark.docker
def test_a_daemon_that_stops_stops_the_run_with_nothing_recorded_for_it_and_resume_completes_it(
    toy: Toy, daemon: Daemon
) -> None:
    give_image(toy, daemon)
    toy.variables["DOCKER_HOST"] = daemon.host
    process = toy.start("bench", "held", "--environments", "baseline", "--engine", "docker")
    toy.let_end()
    until(toy.programs, 400)
    daemon.stop()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "engine docker is no longer available" in err
    assert "envmatrix resume held-" in err
    assert [trial["outcome"] for trial in toy.trials()] == ["ok"]
    daemon.start()
    again = toy.start("resume")
    held = until(toy.programs, 400)
    again.send_signal(signal.SIGSTOP)  # no further trial may start before the image is removed
    os.kill(held[0], signal.SIGUSR1)
    daemon.remove_image()
    again.send_signal(signal.SIGCONT)
    until(lambda: len(toy.trials()) == 2)
    err = toy.let_all_end(again)
    assert again.returncode == 0, err
    assert "rebuilding it" in err
    assert [(trial["trial"], trial["outcome"]) for trial in toy.trials()] == [(name, "ok") for name in toy.planned()]
    assert toy.left() == []

"""Conda packages as a level: solved, locked and installed by the real py-rattler, from a local channel."""

import json

import pytest

from envmatrix.build.cache import Cache
from envmatrix.build.python.conda import ensure_conda_image
from envmatrix.errors import EngineError
from envmatrix.plan.environment import Image
from tests.conda_channel import SITE, add, add_python

pytest.importorskip("rattler")
pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

MATRIX = """
version: 2
factors:
  blas:
    one: {conda: [python, toy=1.0], channels: CHANNEL}
    two: {conda: [python, "toy>=2"], channels: CHANNEL}
environments: {baseline: {}, two: {blas: two}}
workloads:
  ask: {command: [python, ask.py], metric: {regex: 'items/s: ([0-9.]+)', better: higher}}
designs: {default: {environments: two, workloads: ask, max_blocks: 1, budget: 5m}}
"""
ASK = "import sys, toy\nassert '/conda/environments/' in sys.prefix, sys.prefix\nprint('items/s:', toy.SPEED)\n"


def toy(channel, version):
    return add(channel, "toy", version, ["python"], {f"{SITE}/toy.py": f"SPEED = {version}\nHOME = '{{prefix}}'\n"})


def asked(channel, package):
    return Image("x", conda=("python", package), channels=(channel.as_uri(),))


@pytest.fixture
def channel(project, tmp_path, monkeypatch):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "channel"
    add_python(made)
    toy(made, "1.0")
    toy(made, "2.0")
    (project.folder / "matrix.yaml").write_text(MATRIX.replace("CHANNEL", made.as_uri()))
    (project.folder / "ask.py").write_text(ASK)
    return made


def test_a_program_runs_in_environments_of_conda_packages_which_stay_as_they_were_solved(project, channel):
    done = project.run("bench")
    assert done.returncode == 0, done.stderr
    assert f"solving python, toy>=2 with {channel.as_uri()}" in done.stderr
    seen = {one["environment"]: one["record"]["metrics"]["value"] for one in project.trials()}
    assert seen == {"baseline": 1.0, "control": 1.0, "two": 2.0}
    facts = json.loads((project.newest() / "run.json").read_text())["images"]["blas-two@local"]
    assert facts["package conda:toy"] == "2.0 0"
    assert facts["lock_digest"].startswith("sha256:")
    homes = [file.read_text() for file in (channel.parent / "cache/conda/environments").glob(f"*/{SITE}/toy.py")]
    assert len(set(homes)) == 2
    assert all("/." not in home for home in homes), "packages know where they lie, not where they were built"


def test_what_was_solved_once_is_what_every_later_run_has(channel, tmp_path):
    cache, said = Cache(tmp_path / "cache"), []
    first, _ = ensure_conda_image(cache, asked(channel, "toy"), said.append)
    toy(channel, "3.0")
    again, _ = ensure_conda_image(cache, asked(channel, "toy"), said.append)
    assert first == again
    assert said == [f"solving python, toy with {channel.as_uri()}", "installing 2 conda packages"]


def test_a_package_that_is_not_the_one_that_was_locked_is_refused(channel, tmp_path):
    cache = Cache(tmp_path / "cache")
    with (channel / "linux-64" / "toy-2.0-0.tar.bz2").open("ab") as file:
        file.write(b"more")
    with pytest.raises(EngineError, match=r"toy-2\.0-0\.tar\.bz2 differs from the locked package"):
        ensure_conda_image(cache, asked(channel, "toy"), print)
    assert not list((cache.root / "conda" / "environments").glob("*")), "nothing half made is left"


@pytest.mark.parametrize(
    ("channel_of", "package", "words"),
    [
        (lambda made: made, "nowhere", "cannot get python, nowhere from file://.*No candidates were found"),
        (lambda made: made, "toy=*=", r"cannot get python, toy=\*="),
        (lambda made: made.parent / "absent", "toy", "cannot get .* from file://.*absent"),
    ],
)
def test_what_cannot_be_solved_is_told_in_rattlers_words(channel, tmp_path, channel_of, package, words):
    with pytest.raises(EngineError, match=words):
        ensure_conda_image(Cache(tmp_path / "cache"), asked(channel_of(channel), package), print)


def test_packages_without_a_python_are_no_environment_for_a_program(channel, tmp_path):
    add(channel, "alone", "1.0", (), {"share/alone": "1"})
    with pytest.raises(EngineError, match="conda: alone do not include Python"):
        ensure_conda_image(Cache(tmp_path / "cache"), Image("x", conda=("alone",), channels=(channel.as_uri(),)), print)

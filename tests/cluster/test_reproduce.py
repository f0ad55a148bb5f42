"""From one clone into another: a run is packed, verified elsewhere, run again and compared. Needs no Slurm."""

import json
import shutil

import pytest

from tests.cluster.conftest import Project
from tests.cluster.slurm_daemons import Nowhere

pytestmark = [pytest.mark.local, pytest.mark.timeout(900)]


def test_a_run_is_packed_and_reproduced_in_another_clone(tmp_path):
    here, there = Project(tmp_path / "here", Nowhere()), Project(tmp_path / "there", Nowhere())
    done = here.run("bench", "tiny", "--quiet")
    assert done.returncode == 0, done.stderr
    packed = here.run("pack", "--json", "--output", "run.tar.gz")
    assert packed.returncode == 0, packed.stderr
    told = json.loads(packed.stdout)
    shutil.move(here.folder / "run.tar.gz", there.folder / "run.tar.gz")
    shutil.rmtree(here.folder)
    for name in ("matrix.yaml", "containers"):  # all that is needed is in the archive
        (there.folder / name).unlink()

    checked = there.run("reproduce", "run.tar.gz", "--check", "--sha256", told["sha256"])
    assert checked.returncode == 0, checked.stderr
    assert "files are as promised; not signed" in checked.stderr

    again = there.run("reproduce", "run.tar.gz", "--json", "--quiet")
    assert again.returncode in (0, 3), again.stderr
    answer = json.loads(again.stdout)
    assert [effect["environment"] for effect in answer["effects"]] == ["one-thread"]
    (effect,) = answer["effects"]
    assert effect["answer"] in ("reproduced", "not reproduced", "undecided")
    assert effect["then"]["low"] < effect["then"]["ratio"] < effect["then"]["high"]
    assert effect["now"]["low"] < effect["now"]["ratio"] < effect["now"]["high"]
    assert not [item for item in answer["differences"] if item["where"].startswith(("image", "benchmark", "host"))]

    text = there.run("reproduce", "run.tar.gz", "--run", answer["run"])
    assert text.returncode == again.returncode, text.stderr
    assert effect["answer"] in text.stdout
    assert f"{effect['now']['ratio']:.3f} [" in text.stdout


def test_a_changed_archive_is_refused_and_leaves_nothing(tmp_path):
    project = Project(tmp_path / "here", Nowhere())
    (project.folder / "run.tar.gz").write_bytes(b"\x1f\x8b not an archive")
    for arguments in (["run.tar.gz"], ["run.tar.gz", "--sha256", "0" * 64], ["nosuch.tar.gz"]):
        done = project.run("reproduce", *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("envmatrix: ")
    assert not list((project.folder / "results").glob("*"))

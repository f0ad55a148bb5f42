"""A run is packed in one clone, then verified, repeated and compared in another."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cluster.conftest import Project
from tests.cluster.slurm_daemons import Nowhere
from tests.cluster.test_slurm import needs_apptainer
from tests.engines.conftest import write_wheel

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
    for name in ("matrix.yaml", "containers"):  # the archive has everything that is needed
        (there.folder / name).unlink()

    checked = there.run("reproduce", "run.tar.gz", "--check", "--sha256", told["sha256"])
    assert checked.returncode == 0, checked.stderr
    assert "files match the manifest; not signed" in checked.stderr

    again = there.run("reproduce", "run.tar.gz", "--json", "--quiet")
    assert again.returncode in (0, 3), again.stderr
    answer = json.loads(again.stdout)
    assert [effect["environment"] for effect in answer["effects"]] == ["one-thread"]
    (effect,) = answer["effects"]
    assert effect["answer"] in ("reproduced", "not reproduced", "undecided")
    assert effect["then"]["low"] < effect["then"]["ratio"] < effect["then"]["high"]
    assert effect["now"]["low"] < effect["now"]["ratio"] < effect["now"]["high"]
    assert not [item for item in answer["differences"] if item["where"].startswith(("image", "benchmark", "host"))]

    text = there.run("reproduce", "run.tar.gz", answer["run"])
    assert text.returncode == again.returncode, text.stderr
    assert effect["answer"] in text.stdout
    assert f"{effect['now']['ratio']:.3f} [" in text.stdout


@pytest.mark.slurm
def test_two_matrices_are_measured_in_the_same_blocks_under_slurm(project):
    old = Project(project.folder.parent / "old", project.cluster)
    shutil.copy(project.folder / "matrix.yaml", old.folder / "matrix.yaml")  # the same program: the file names a folder
    design = ("--design", "short", "--launcher", "slurm", "--nodelist", "n1,n2")
    done = project.run("compare", "--rerun", str(old.folder), ".", *design, "--json")
    assert done.returncode == 0, done.stderr
    assert [item["new"] for item in json.loads(done.stdout)["comparisons"]] == ["new.baseline"]
    trials = project.trials()
    assert {(trial["block"], trial["node"]) for trial in trials} == {(0, "n1"), (1, "n2")}
    assert {trial["environment"] for trial in trials} == {"old.baseline", "control", "new.baseline"}
    assert {trial["outcome"] for trial in trials} == {"ok"}


#: The image of tests/faults, with a wheel of a few bytes, so that archives are as small as possible.
SMALL = """
version: 1
factors: {image: {plain: {requirements: [tinypkg]}}}
environments: {baseline: {}}
workloads: {short: {command: [python, -c, "import tinypkg"], metric: {wall: true}}}
designs:
  small: {workloads: short, schedule: sequential, min_blocks: 2, max_blocks: 2, budget: 60m,
          slurm: {nodes: 2, nodelist: [n1, n2]}}
"""


@pytest.mark.slurm
def test_a_run_in_apptainer_is_reproduced_under_slurm_from_the_images_in_its_archive(project, tmp_path):
    needs_apptainer()
    write_wheel(tmp_path, "tinypkg", "1.0", {"tinypkg/__init__.py": b"VERSION = '1.0'\n"})
    (project.folder / "matrix.yaml").write_text(SMALL)
    wheels = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    small = ("small", "--launcher", "slurm", "--engine", "apptainer")
    done = project.run("bench", *small, "--quiet", **wheels)
    assert done.returncode == 0, done.stderr
    packed = project.run("pack", "--images", "--output", "run.tar.gz", "--json")
    assert packed.returncode == 0, packed.stderr
    there = Project(tmp_path / "there", project.cluster)
    for name in ("matrix.yaml", "containers"):
        (there.folder / name).unlink()
    shutil.move(project.folder / "run.tar.gz", there.folder / "run.tar.gz")

    again = there.run("reproduce", "run.tar.gz", "--launcher", "slurm", "--json", "--quiet", "--nodelist", "n2")
    assert again.returncode == 0, again.stderr
    assert "from the pack" in again.stderr
    assert "building a SIF" not in again.stderr
    trials = there.trials()
    assert {(trial["outcome"], trial["node"], trial["engine"]) for trial in trials} == {("ok", "n2", "apptainer")}
    order = next((there.newest() / "slurm").glob("*/order-1.json")).read_text()
    assert f"{there.folder}/results/packed-" in order  # the unpacked file itself was run
    answer = json.loads(again.stdout)
    assert answer["effects"] == []  # only the baseline and its control
    assert not [item for item in answer["differences"] if item["where"].startswith(("image", "benchmark", "host"))]

    kept = json.loads((there.newest() / "images.json").read_text())
    sif = Path(kept[0]["reference"])
    sif.unlink()
    lost = there.run("reproduce", "run.tar.gz", answer["run"])
    assert lost.returncode == 0, lost.stderr  # opening the archive has restored it
    assert sif.exists()


def test_a_changed_archive_is_refused_and_leaves_nothing(tmp_path):
    project = Project(tmp_path / "here", Nowhere())
    (project.folder / "run.tar.gz").write_bytes(b"\x1f\x8b not an archive")
    for arguments in (["run.tar.gz"], ["run.tar.gz", "--sha256", "0" * 64], ["nosuch.tar.gz"]):
        done = project.run("reproduce", *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("envmatrix: ")
    assert not list((project.folder / "results").glob("*"))

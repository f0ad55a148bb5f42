"""Ready-made images from others, used unchanged in real Docker, Podman and Apptainer."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envmatrix.build.cache import file_digest
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.base import Engine, Job, Limits, Mounts, library_path
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_api import connect
from envmatrix.engines.local import LocalEngine
from envmatrix.engines.podman import PodmanEngine
from envmatrix.errors import SkipEnvironmentError
from envmatrix.plan.environment import Image, Library
from envmatrix.system.resource_paths import cache_folder
from tests import no_network
from tests.accounts import check_account
from tests.engines.conftest import ENGINES, Said, builders_folders, demand, use_podman, write_wheel

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
TAG = "envmatrix-test/ready:1"
LIBRARIES = (
    Library("malloc-jemalloc", (), ("libjemalloc2",), ("libjemalloc.so.2",)),
    Library("malloc-tiny", ("tinylib==1.0",), (), ("libtiny.so",)),
)
SEEN = """
import json, os
maps = open("/proc/self/maps").read()
json.dump([os.environ["MINE"], os.environ["OWN"], "libjemalloc" in maps], open("out.json", "w"))
"""


MATRIX = """
version: 2
include: envmatrix:malloc
factors: {image: {mine: {image: "IMAGE"}}}
environments: {baseline: {}}
workloads:
  own:
    command: [python3, speed.py]
    metric: {regex: 'speed ([0-9.]+)', better: higher}
    files: programs
    mounts: [DATA]
    env: {DATA: DATA}
    pass_env: [OWN_TOKEN]
designs: {default: {environments: jemalloc, workloads: own, engines: [ENGINES], max_blocks: 1}}
"""
PROGRAM = """
import os, pathlib
data = pathlib.Path(os.environ["DATA"])
try:
    (data / "new").write_text("")
except OSError:
    print("speed", (data / "speed.txt").read_text(), os.environ["MINE"], len(os.environ["OWN_TOKEN"]))
"""


@pytest.fixture(scope="module")
def mine(ground: BuildPaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build an image with a tag and a variable of its own; yield its archive."""
    demand(DockerEngine(ground).unavailable())
    body = {"tinylib-1.0.data/data/lib/libtiny.so": b"\x7fELF no library"}
    write_wheel(Path(os.environ["PIP_FIND_LINKS"]), "tinylib", "1.0", body)
    parent = DockerEngine(ground).prepare(Image("tiny", requirements=("tinypkg==1.0",)), (), Said())
    text = f"FROM {parent.facts['image_id'].removeprefix('sha256:')}\nENV MINE=of-the-image\n"
    client = connect()
    client.images.build(fileobj=io.BytesIO(text.encode()), tag=TAG, rm=True)
    archive = tmp_path_factory.mktemp("ready") / "mine.tar"
    with archive.open("wb") as file:
        file.writelines(client.images.get(TAG).save(named=True))
    yield archive
    client.images.remove(TAG, force=True)
    client.close()


def check(engine: Engine, ready: str, work: Path) -> str:
    """Prepare and use an image on an engine; return its recorded digest and where it was found."""
    prepared = engine.prepare(Image("mine", ready=ready), LIBRARIES, Said())
    assert prepared.variables["MINE"] == "of-the-image"
    assert prepared.facts["libc"].startswith("glibc 2.")
    assert "cannot import torch" in prepared.without_torch
    with pytest.raises(SkipEnvironmentError, match="does not load in this image"):
        library_path(prepared, "malloc-tiny", "libtiny.so")
    preload = (library_path(prepared, "malloc-jemalloc", "libjemalloc.so.2"),)
    work.mkdir()
    job = Job(
        "ready-images", work.name, prepared, (prepared.python, "-c", SEEN), {"OWN": "of the trial"}, preload,
        Mounts(work, {}), Limits(60.0), work.parent / f"{work.name}.log",
    )  # fmt: skip
    ended = engine.run(job)
    assert ended.ok, (work.parent / f"{work.name}.log").read_text()
    assert json.loads((work / "out.json").read_text()) == ["of-the-image", "of the trial", True]
    assert engine.holds(prepared)
    return f"{prepared.facts['base_digest']} {prepared.reference}"


def test_a_local_tag_and_an_archive_run_in_docker(ground: BuildPaths, mine: Path, tmp_path: Path) -> None:
    digest = check(DockerEngine(ground), TAG, tmp_path / "tag")
    assert check(DockerEngine(ground), str(mine), tmp_path / "archive") == digest, "both are one image"
    with pytest.raises(SkipEnvironmentError, match="only a container"):
        LocalEngine(ground).prepare(Image("mine", ready=TAG), (), Said())


def benchmarked(folder: Path, image: str, engines: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Benchmark a program in an image with the command; return its facts by engine."""
    monkeypatch.setenv("OWN_TOKEN", "very-secret")
    (folder / "data").mkdir()
    (folder / "data" / "speed.txt").write_text("7.5")
    (folder / "programs").mkdir()
    (folder / "programs" / "speed.py").write_text(PROGRAM)
    text = MATRIX.replace("IMAGE", image).replace("DATA]", f"{folder}/data]").replace("DATA}", f"{folder}/data}}")
    (folder / "matrix.yaml").write_text(text.replace("ENGINES", engines))
    argv = [sys.executable, "-m", "envmatrix", "bench", "--name", "own"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (folder / "results" / "own" / "trials.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    assert {trial["outcome"] for trial in trials} == {"ok"}, [trial["reason"] for trial in trials]
    for trial in trials:
        served = trial["record"]["evidence"]["malloc"]["library"]
        assert served == ("libjemalloc" if trial["environment"] == "jemalloc" else "libc")
        assert trial["record"]["metrics"]["value"] == 7.5
        check_account(trial)
    assert "very-secret" not in "".join(lines)
    run = json.loads((folder / "results" / "own" / "run.json").read_text())
    return {image.partition("@")[2]: facts["base_digest"] for image, facts in run["images"].items()}


@pytest.mark.apptainer
def test_a_program_is_benchmarked_in_an_archive_by_docker_and_by_apptainer(
    ground: BuildPaths, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe, the program's files, its data, its variables and another allocator all come from outside the image."""
    demand(ApptainerEngine(ground).unavailable())
    found = benchmarked(tmp_path, str(mine), "docker, apptainer", monkeypatch)
    assert found["apptainer"] == f"sha256:{file_digest(mine)}"
    assert found["docker"].startswith("sha256:")


def test_a_program_is_benchmarked_in_an_image_that_a_registry_has_by_its_digest(
    ground: BuildPaths, mine: Path, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, name = connect(), f"{registry}/ml/train"
    try:
        image = client.images.get(TAG)
        image.tag(name, "now")
        digest = str(client.images.push(name, "now")).split("digest: ")[1].split(" ")[0]
        client.images.remove(f"{name}:now")
        found = benchmarked(tmp_path, f"{name}@{digest}", "docker", monkeypatch)
        assert found == {"docker": image.id}, "what was pulled is what was pushed"
        client.images.remove(f"{name}@{digest}", force=True)
    finally:
        client.close()


@pytest.mark.podman
def test_an_archive_runs_in_podman(
    ground: BuildPaths, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_podman(monkeypatch)
    digest = check(PodmanEngine(ground), str(mine), tmp_path / "archive")
    assert digest.startswith("sha256:")
    loaded = f"envmatrix/loaded:{file_digest(mine)[:24]}"
    assert check(PodmanEngine(ground), loaded, tmp_path / "tag") == digest, "a local tag is the same image"


@pytest.mark.apptainer
def test_a_local_tag_and_a_sif_run_in_apptainer(ground: BuildPaths, mine: Path, tmp_path: Path) -> None:
    engine = ApptainerEngine(ground)
    demand(engine.unavailable())
    digest, sif = check(engine, TAG, tmp_path / "tag").split()
    assert digest == check(DockerEngine(ground), TAG, tmp_path / "docker").split()[0]
    assert builders_folders(sif) == []
    real = Path(sif).resolve()
    assert check(engine, sif, tmp_path / "sif") == f"sha256:{file_digest(real)} {real}"
    with pytest.raises(SkipEnvironmentError, match="is a SIF file"):
        DockerEngine(ground).prepare(Image("mine", ready=sif), (), Said())


TRAIN = """
import os, pathlib, sys
assert os.environ["MINE"] == "of-the-image"
assert pathlib.Path("SOURCE").is_file(), "its folder is at its own path"
pathlib.Path("new.txt").write_text("")
print(pathlib.Path(sys.argv[1]).read_text(), "it/s", pathlib.Path("linked/speed.txt").read_text())
"""


@pytest.mark.apptainer
@pytest.mark.podman
@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_a_program_on_the_command_line_runs_in_an_image(
    ground: BuildPaths, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Its data, by a path and by a link, come from outside; what it writes changes nothing; the results come back."""
    if engine == "podman":
        use_podman(monkeypatch)
    demand(ENGINES[engine](ground).unavailable())
    data, folder = tmp_path / "data", tmp_path / "program"
    data.mkdir()
    folder.mkdir()
    (data / "speed.txt").write_text("7.5")
    (folder / "linked").symlink_to(data)
    (folder / "train.py").write_text(TRAIN.replace("SOURCE", str(folder / "train.py")))
    options = ("--environments", "jemalloc", "--max-blocks", "1", "--name", "own")
    words = ("--engine", engine, "--image", str(mine), *options)
    argv = [sys.executable, "-m", "envmatrix", "bench", *words, "--", "python", "train.py", str(data / "speed.txt")]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in (folder / "results" / "own" / "trials.jsonl").read_text().splitlines()]
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3, [trial["reason"] for trial in trials]
    assert {trial["record"]["metrics"]["value"] for trial in trials} == {7.5}
    served = {trial["environment"]: trial["record"]["evidence"]["malloc"]["library"] for trial in trials}
    assert served == {"baseline": "libc", "control": "libc", "jemalloc": "libjemalloc"}
    assert sorted(file.name for file in folder.iterdir()) == ["linked", "results", "train.py"]


@pytest.mark.apptainer
@pytest.mark.podman
@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_a_command_and_the_evidence_of_a_program_are_had_in_an_image_too(
    ground: BuildPaths, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """`exec` writes to the current folder, `evidence` to no folder of yours, and neither to your home."""
    if engine == "podman":
        use_podman(monkeypatch)
    demand(ENGINES[engine](ground).unavailable())
    monkeypatch.setenv("ENVMATRIX_CACHE", str(cache_folder()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    folder = tmp_path / "program"  # pytest's own folder can be read by root only
    folder.mkdir()
    (folder / "matrix.yaml").write_text("version: 2\ninclude: envmatrix:malloc\nenvironments: {baseline: {}}\n")
    source = f"import os; open({str(folder / 'matrix.yaml')!r}); open('new-' + os.environ['MINE'], 'w')"
    (folder / "train.py").write_text(source)
    options = ("jemalloc", "--engine", engine, "--image", str(mine))

    def envmatrix(*words: str) -> str:
        argv = [sys.executable, "-m", "envmatrix", *words, "--", "python", "train.py"]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    evidence = json.loads(envmatrix("evidence", *options, "--json"))["evidence"]
    assert (evidence["malloc"]["library"], evidence["source"]) == ("libjemalloc", "probe")
    assert sorted(file.name for file in folder.iterdir()) == ["matrix.yaml", "train.py"]
    envmatrix("exec", *options)
    assert (folder / "new-of-the-image").exists()
    assert not [*(tmp_path / "home").iterdir()]


BESIDE = """
import os, pathlib
print(pathlib.Path("../data/speed.txt").read_text(), "it/s")
assert (pathlib.Path(__file__).parent.parent / "data").is_dir()
assert pathlib.Path("linked/speed.txt").exists(), "a link that leaves the folder"
assert pathlib.Path("sub/far/words.txt").read_text() == "far", "a link below the folder to one that is not beside it"
pathlib.Path("sub/new").write_text("")
pathlib.Path("last.ckpt").write_text("weights")
pathlib.Path(os.path.abspath("train.py")).with_name("best.ckpt").write_text("weights")
for folder in ("../data", "sub/far"):
    try:
        pathlib.Path(folder, "new").write_text("")
    except OSError:
        pass
    else:
        raise SystemExit(f"{folder} was written to")
"""


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file below a folder."""
    return {str(path.relative_to(folder)): file_digest(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.apptainer
@pytest.mark.parametrize("engine", ["docker", "apptainer"])
def test_a_program_in_an_image_finds_the_data_beside_its_folder_and_its_checkpoints_change_nothing_there(
    ground: BuildPaths, mine: Path, tmp_path: Path, engine: str
) -> None:
    demand(ENGINES[engine](ground).unavailable())
    above = tmp_path / "above"
    program = above / "my program"
    far = tmp_path / "far"
    for folder in (program / "sub", above / "data", far, tmp_path / "results"):
        folder.mkdir(parents=True)
    (program / "sub" / "far").symlink_to("../../../far")
    (far / "words.txt").write_text("far")
    above.chmod(0o755)
    (above / "data" / "speed.txt").write_text("7.5")
    (program / "linked").symlink_to("../data")
    (program / "last.ckpt").write_text("mine")
    (program / "train.py").write_text(BESIDE)
    before = digests(above), digests(far)
    words = ("--engine", engine, "--image", str(mine), "--environments", "jemalloc", "--max-blocks", "1")
    where = ("--name", "own", "--results", str(tmp_path / "results"))
    argv = [sys.executable, "-m", "envmatrix", "bench", *words, *where, "--", "python", "train.py"]
    done = subprocess.run(argv, cwd=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"mounted read-only at the same path: {above}, " in done.stderr
    assert f", {far}\n" in done.stderr
    trials = [json.loads(line) for line in (tmp_path / "results/own/trials.jsonl").read_text().splitlines()]
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3, [trial["reason"] for trial in trials]
    assert {trial["record"]["metrics"]["value"] for trial in trials} == {7.5}
    assert (digests(above), digests(far)) == before


@pytest.mark.apptainer
def test_a_packed_run_in_an_image_is_repeated_without_a_network_with_the_library_in_the_pack(
    ground: BuildPaths, mine: Path, tmp_path: Path
) -> None:
    demand(ApptainerEngine(ground).unavailable())
    here, there, cache = tmp_path / "here", tmp_path / "there", tmp_path / "cache"
    for folder in (here, there):
        folder.mkdir()
    (here / "train.py").write_text("print('7.5 it/s')\n")
    words = ("--engine", "apptainer", "--image", str(mine), "--environments", "jemalloc", "--max-blocks", "1")
    bench = ("bench", *words, "--name", "own", "--", "python", "train.py")
    for command in (bench, ("pack", "own", "--images", "--output", "run.tar.gz")):
        argv = [sys.executable, "-m", "envmatrix", *command]
        done = subprocess.run(argv, cwd=here, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    said = no_network.reproduce(here / "run.tar.gz", there, cache)
    assert "from the pack" in said
    (run,) = (file.parent for file in there.glob("results/*/reproduction.json"))
    trials = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3, [trial["reason"] for trial in trials]
    served = {trial["environment"]: trial["record"]["evidence"]["malloc"]["library"] for trial in trials}
    assert served == {"baseline": "libc", "control": "libc", "jemalloc": "libjemalloc"}
    (started,) = json.loads((run / "images.json").read_text())
    assert started["reference"].startswith(str(there.resolve()))
    (library,) = started["mounted"].values()
    assert Path(library).is_relative_to(cache), "what was mounted came from the pack"

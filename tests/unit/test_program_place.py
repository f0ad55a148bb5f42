"""Where a program on the command line runs: what is mounted for it, and what is refused before anything starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envmatrix.api.user_program.program_options import (
    ProgramPlace,
    ProgramRequest,
    check_place,
    make_place,
    without_secrets_and_host_paths,
)
from envmatrix.errors import EngineError, EnvmatrixError, InputError
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import MatrixTemplate
from envmatrix.trials.user_program import mounts
from envmatrix.trials.user_program.mounts import folders_to_mount

IN_IMAGE = ProgramPlace("docker", "team/train:1", ("0", "1"))


@pytest.fixture(autouse=True)
def every_engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("docker.DockerEngine", "podman.PodmanEngine", "apptainer.ApptainerEngine"):
        monkeypatch.setattr(f"envmatrix.engines.{engine}.unavailable", lambda _: None)


def place(*engines: str, image: str = "", launcher: str = "here", **options: str) -> ProgramPlace:
    return make_place(engines, image, launcher, options, lambda _: None)


def matrix_of(place: ProgramPlace) -> str:
    program = Workload.model_validate({"name": "train", "command": ("python", "train.py"), "metric": {"wall": True}})
    return MatrixTemplate(
        "", [program], False, ["tcmalloc"], image=place.image, engine=place.engine, gpus=place.gpus
    ).text()  # fmt: skip


@pytest.mark.parametrize(
    ("engines", "image", "said"),
    [
        (("docker",), "", "--engine docker needs an image .* -> `--image REF`"),
        (("apptainer",), "", "--engine apptainer needs an image"),
        (("podman",), "", "--engine podman needs an image"),
        ((), "train:1", "engine local uses no image -> add `--engine docker`, `--engine podman` or"),
        (("docker", "apptainer"), "train:1", "--engine docker,apptainer: your own program runs on one engine"),
        (("dokcer",), "train:1", "no engine 'dokcer'"),
    ],
)
def test_an_engine_without_an_image_and_an_image_without_an_engine_are_refused(
    engines: tuple[str, ...], image: str, said: str
) -> None:
    with pytest.raises(InputError) as error:
        place(*engines, image=image)
    assert re.search(said, f"{error.value.message} -> {error.value.remedy}")


def test_gpus_are_a_containers_here_and_a_nodes_too_with_a_launcher() -> None:
    here = place("docker", image="train:1", gpus="0, 1")
    assert (here.gpus, dict(here.launcher_options)) == (("0", "1"), {})
    there = place("apptainer", image="train.sif", launcher="slurm", gpus="a100:2")
    assert (there.gpus, dict(there.launcher_options)) == (("all",), {"gpus": "a100:2"})


def test_the_matrix_of_a_program_in_an_image_has_the_image_its_engine_and_its_gpus() -> None:
    matrix = parse(matrix_of(IN_IMAGE), Path("matrix.yaml"))
    assert matrix.factors["image"].levels["mine"].image == "team/train:1"
    assert "python" not in matrix.factors
    design = matrix.designs["default"]
    assert (design.engines, design.gpus) == (("docker",), ("0", "1"))


@pytest.mark.parametrize(
    ("there", "pass_env", "said"),
    [
        (ProgramPlace(launcher="slurm"), ["HF_TOKEN"], "--pass-env HF_TOKEN: it looks like a secret"),
        (ProgramPlace(launcher_options={"queue": "all.q"}), [], "--queue means nothing to launcher here"),
        (
            ProgramPlace("docker", "t:1", launcher="ssh", launcher_options={"hosts": ("a",)}),
            [],
            "needs its own service",
        ),
        (ProgramPlace(launcher="ssh"), [], "--launcher ssh needs hosts"),
    ],
)
def test_what_a_launcher_cannot_do_is_refused_before_the_trial_run(
    there: ProgramPlace, pass_env: list[str], said: str
) -> None:
    with pytest.raises((InputError, EngineError), match=said):
        check_place(parse(matrix_of(there), Path("matrix.yaml")), there, pass_env)


@pytest.mark.parametrize(
    "request_",
    [
        ProgramRequest((".venv/bin/python", "train.py"), place=IN_IMAGE),
        ProgramRequest(("python", "train.py"), requirements=(Path("requirements.txt"),), place=IN_IMAGE),
    ],
)
def test_another_python_than_the_images_is_refused(request_: ProgramRequest) -> None:
    with pytest.raises(EnvmatrixError, match="cannot be combined with --image: the image has its own Python"):
        request_.program()


@pytest.mark.parametrize("words", [("python",), ("python3", "-"), ("bash", "-s"), ("/bin/sh",)])
@pytest.mark.parametrize("place", [ProgramPlace(), IN_IMAGE])
def test_a_program_that_would_come_from_standard_input_is_refused(words: tuple[str, ...], place: ProgramPlace) -> None:
    with pytest.raises(InputError, match=f"reads a program from standard input.*\n.*-- {words[0]} FILE"):
        ProgramRequest(words, place=place).program()


def test_the_python_of_an_image_need_not_be_on_this_machine() -> None:
    program = ProgramRequest(("python3.99", "train.py"), place=IN_IMAGE).program()
    assert (program.interpreter, program.command) == ("", ("python", "train.py"))
    program = ProgramRequest(("/opt/conda/bin/python", "train.py"), place=IN_IMAGE).program()
    assert program.command == ("/opt/conda/bin/python", "train.py")


def test_a_container_gets_no_search_path_of_this_machine_and_a_job_no_secret() -> None:
    names = ["HF_TOKEN", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PATH"]
    assert without_secrets_and_host_paths(names, IN_IMAGE) == ["HF_TOKEN", "OMP_NUM_THREADS"]
    assert without_secrets_and_host_paths(names, ProgramPlace(launcher="slurm")) == [
        "LD_LIBRARY_PATH",
        "OMP_NUM_THREADS",
        "PATH",
    ]
    assert without_secrets_and_host_paths(names, ProgramPlace()) == names


def test_the_folders_that_a_program_names_are_mounted_and_none_of_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "program"
    for name in ("program/src", "data", "models", "linked", "two words"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "x.bin").touch()
    (tmp_path / "file-in-the-home").touch()
    (folder / "link").symlink_to(tmp_path / "linked")
    monkeypatch.setenv("MODELS", f"{tmp_path}/models:/usr/lib")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)  # so that the folder above is not mounted
    words = ["python", str(folder / "src"), f"--data={tmp_path}/data/x.bin", "/usr/bin", "/tmp", "/nowhere/at/all",
             f"{tmp_path}/file-in-the-home", f"{tmp_path}/two words", "x" * 5000, f"/{'x' * 5000}"]  # fmt: skip
    found = folders_to_mount(folder, words, ["MODELS", "UNSET"])
    assert found == (str(folder), *(str(tmp_path / name) for name in ("data", "models", "linked")))


def test_what_links_below_a_programs_folder_lead_to_is_mounted_but_no_home_and_no_folder_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, home = tmp_path / "above" / "program", tmp_path / "home"
    for folder in (program / "sub", program / ".git", tmp_path / "data" / "inner", tmp_path / "objects", home):
        folder.mkdir(parents=True)
    (home / "words.txt").touch()
    for link, target in {
        "sub/data": "../../../data",
        "sub/inner": "../../../data/inner",
        "sub/home": "../../../home",
        "sub/words": "../../../home/words.txt",
        "sub/system": "/usr/lib",
        "sub/everything": "/",
        "sub/itself": "itself",
        ".git/objects": "../../../objects",
    }.items():
        (program / link).symlink_to(target)
    program.parent.chmod(0o755)
    monkeypatch.setattr(Path, "home", lambda: home)
    assert folders_to_mount(program, [], []) == (str(program.parent), str(tmp_path / "data"))


def test_the_folder_above_a_programs_own_is_mounted_for_its_data_unless_another_user_could_not_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    for name in ("program", "data"):
        (above / name).mkdir(parents=True)
    words = [f"--data={above}/data", f"--models={tmp_path}"]
    monkeypatch.setattr(mounts.os, "geteuid", lambda: above.stat().st_uid)
    above.chmod(0o755)
    assert folders_to_mount(above / "program", words, []) == (str(above), str(tmp_path))
    monkeypatch.setattr(mounts.os, "geteuid", lambda: above.stat().st_uid + 1)
    assert folders_to_mount(above / "program", words[:1], []) == (str(above / "program"), str(above / "data"))


def test_a_root_mounts_the_folder_above_only_if_the_containers_user_can_read_it(tmp_path: Path) -> None:
    program = tmp_path / "above" / "program"
    program.mkdir(parents=True)
    program.parent.chmod(0o700)
    expected = program if mounts.os.geteuid() == 0 else program.parent
    assert folders_to_mount(program, [], []) == (str(expected),)

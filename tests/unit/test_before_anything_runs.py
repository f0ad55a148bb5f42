"""Foreseeable failures are reported before anything is built or downloaded."""

import pytest

from envmatrix.engines.base import Prepared
from envmatrix.errors import InputError, NothingRanError
from envmatrix.evidence.checks import parse_claims
from envmatrix.matrix.model import Design, Workload
from envmatrix.plan import make_arms
from envmatrix.plan.environment import Image, resolve_environment
from envmatrix.trials import experiment_setup, images
from envmatrix.trials.feasibility import (
    arms_that_cannot_run,
    check_batch_split,
    environments_needing_newer_driver,
)
from envmatrix.trials.new_run_options import NewRun
from tests import shipped_levels
from tests.synthetic import make_environment

ARMS = make_arms(("a",), ("w",), ("local",), "a")
WORKLOADS = {"w": Workload(name="w")}


DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Sep 19 19:34:42 UTC 2023\n"


@pytest.mark.parametrize(
    ("driver", "gpus", "reasons"),
    [
        ("535.104.05", ["all"], {"new": "CUDA 13.0 needs driver 580.65.06 or newer, and this is 535.104.05"}),
        ("580.95.05", ["all"], {}),
        ("", ["all"], {}),
        (None, ["all"], {}),
        ("535.104.05", [], {}),
    ],
)
def test_a_cuda_build_that_this_driver_cannot_run_is_not_even_downloaded(tmp_path, driver, gpus, reasons):
    if driver is not None:
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/nvidia0").touch()
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text(DRIVER.format(driver) if driver else "")
    environments = {
        name: make_environment(name, claims=parse_claims({"cuda.built_with": [cuda]} if cuda else {}))
        for name, cuda in (("plain", ""), ("old", "12.8"), ("new", "13.0"))
    }
    found = environments_needing_newer_driver(environments, gpus, tmp_path)
    assert found.keys() == reasons.keys()
    assert all(text in found[name] for name, text in reasons.items())


def checked(options, variables=None, command=()):
    workload = Workload(name="w", options=options) if not command else Workload(name="w", command=command)
    check_batch_split(ARMS, {"a": make_environment("a", variables=variables or {})}, {"w": workload})


@pytest.mark.parametrize(
    ("options", "variables", "words"),
    [
        ({"parallel": "ddp", "processes": 3, "batch_size": 64}, {}, "'w' in environment 'a': a batch of 64 .* 3 equal"),
        ({"parallel": "ddp", "batch_size": 64}, {"BENCH_PROCESSES": "3"}, "a batch of 64 cannot be cut into 3"),
        ({"parallel": "ddp", "batch_size": 63}, {}, "a batch of 63 cannot be cut into 2"),
        ({"parallel": "ddp", "batch_size": 64}, {"BENCH_PROCESSES": "many"}, "must be a number from 1"),
        ({"parallel": "ddp", "processes": 3, "nodes": 2, "batch_size": 6}, {}, "evenly over 2 nodes"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(options, variables, words):
    with pytest.raises(InputError, match=words):
        checked(options, variables)


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"parallel": "ddp", "batch_size": 63}, {"BENCH_PROCESSES": "3"}),
        ({"parallel": "ddp", "processes": 3, "batch_size": 7, "batch_scope": "process"}, {}),
        ({"batch_size": 63}, {"BENCH_PROCESSES": "2"}),
    ],
)
def test_a_batch_that_can_be_shared_is_not(options, variables):
    checked(options, variables)


@pytest.mark.parametrize(
    ("quota", "launcher", "skipped"), [(1.0, "slurm", True), (1.0, "", False), (None, "slurm", False)]
)
def test_no_launcher_elsewhere_limits_cpu_time(quota, launcher, skipped):
    found = arms_that_cannot_run(ARMS, {"a": make_environment("a", cpu_quota=quota)}, WORKLOADS, {}, launcher)
    assert bool(found) == skipped
    assert all("its jobs may not create a control group" in reason for reason in found.values())


@pytest.mark.parametrize(("launcher", "skipped"), [("slurm", False), ("", True), ("gridengine", True)])
def test_only_slurm_applies_options_of_srun(launcher, skipped):
    bound, plain = make_environment("a", srun=("--cpu-bind=cores",)), make_environment("a")
    found = arms_that_cannot_run(ARMS, {"a": bound}, WORKLOADS, {}, launcher)
    assert set(found.values()) == ({"`srun: --cpu-bind=cores` needs `--launcher slurm`"} if skipped else set())
    assert not arms_that_cannot_run(ARMS, {"a": plain}, WORKLOADS, {}, launcher)


PYTHON_ONLY = {"base": "debian", "system python3": "3.11", "package torch": "2.13.0+cpu"}
COMPILES = {**PYTHON_ONLY, "system g++": "12", "system libpython3-dev": "3.11"}


@pytest.mark.parametrize(
    ("compile_option", "facts", "image", "skipped"),
    [
        ("inductor", PYTHON_ONLY, Image("i"), True),
        ("environment", {**PYTHON_ONLY, "system g++": "12"}, Image("i"), True),
        ("inductor", COMPILES, Image("i"), False),
        ("inductor", {"base": "debian", "system python3-torch": "2.6.0+dfsg-7"}, Image("i"), True),
        ("inductor", {"base": "debian", "system python3-torch": "1.13.1+dfsg-4"}, Image("i"), False),
        ("none", PYTHON_ONLY, Image("i"), False),
        ("openxla", PYTHON_ONLY, Image("i"), False),
        ("inductor", {"package torch": "2.13.0+cpu"}, Image("i"), False),  # a venv: this machine's compiler
        ("inductor", PYTHON_ONLY, Image("i", base="own@sha256:0"), False),
        ("inductor", {"base": "own:1"}, Image("i", ready="own:1"), False),
    ],
)
def test_a_container_without_a_compiler_is_skipped_before_its_trials(compile_option, facts, image, skipped):
    prepared = {("i", "local"): Prepared("i", "local", "r", "p", {}, facts)}
    workloads = {"w": Workload(name="w", options={"compile": compile_option})}
    found = arms_that_cannot_run(ARMS, {"a": make_environment("a", image=image)}, workloads, prepared, "")
    assert bool(found) == skipped
    assert all("-> add `apt: [g++, libpython3-dev]`" in reason for reason in found.values())


@pytest.mark.parametrize("name", ["zentorch", "zentorch-unused"])
def test_the_image_of_zentorch_can_compile_in_a_container(name):
    packages = resolve_environment(shipped_levels.matrix(), name, {}).image.apt
    assert {f"system {package}" for package in packages} == COMPILES.keys() - PYTHON_ONLY.keys()


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("{command: [python, train.py], files: nowhere, metric: {wall: true}}", "no such folder: .*nowhere"),
        ("{parallel: ddp, processes: 3, batch_size: 64}", "cannot be cut into 3"),
    ],
)
def test_it_is_said_before_an_image_is_prepared(tmp_path, monkeypatch, workload, words):
    from envmatrix.matrix import load

    (tmp_path / "matrix.yaml").write_text(
        f"version: 1\nenvironments: {{plain: {{}}}}\nworkloads: {{w: {workload}}}\n"
        "designs: {d: {baseline: plain, environments: [plain], workloads: [w]}}\n"
    )
    matrix = load(tmp_path / "matrix.yaml")
    for module, step in (
        (images, "open_engines"),
        (experiment_setup, "prepare_images"),
        (experiment_setup, "prepare_data_sets"),
    ):
        monkeypatch.setattr(module, step, lambda *_: pytest.fail("too late"))
    with pytest.raises(InputError, match=words):
        experiment_setup.create_experiment(matrix, matrix.designs["d"], ("local",), NewRun(tmp_path / "results"))


TWO = make_arms(("a", "fast"), ("w",), ("local", "docker"), "a")


def skipped(*missing):
    design = Design(name="d", environments=("fast",), workloads=("w",))
    return experiment_setup._skip_reasons(design, TWO, dict.fromkeys(missing, "no such Python"), {})


def test_a_run_whose_every_reference_is_missing_is_not_begun():
    """Guards against spending the budget on results that have no reference to compare with."""
    with pytest.raises(NothingRanError, match=r"a:w@local, the reference of the others, .*: no such Python"):
        skipped(("a", "local"), ("a", "docker"))


def test_a_run_that_has_a_reference_on_one_engine_goes_on_with_that():
    names = {name.partition("@")[2] for name in skipped(("a", "docker"))}
    assert names == {"docker"}
    assert set(skipped(("fast", "local"))) == {"fast:w@local"}


ALONE = make_arms(("a", "fast", "small"), ("w",), ("local",), "a")


@pytest.mark.parametrize("searching", [False, True])
def test_a_run_with_nothing_left_to_compare_is_not_begun_unless_it_is_a_step_of_a_search(searching):
    """Guards against spending the budget on a baseline and its control, and ending with 0."""
    design = Design(name="d", environments=("fast", "small"), workloads=("w",))
    missing = {("fast", "local"): "no such library\n  -> install it", ("small", "local"): "no such Python"}

    def begin(gone):
        return experiment_setup._skip_reasons(design, ALONE, gone, {}, references_suffice=searching)

    assert set(begin({("fast", "local"): "no such library"})) == {"fast:w@local"}, "what is left is measured"
    if searching:
        assert set(begin(missing)) == {"fast:w@local", "small:w@local"}
        return
    with pytest.raises(NothingRanError, match=r"none of fast, small is available .*: fast: no such library") as told:
        begin(missing)
    assert told.value.remedy == "install it"


def test_a_design_of_a_baseline_alone_has_nothing_that_could_be_missing():
    assert experiment_setup._skip_reasons(Design(name="d", workloads=("w",)), ARMS, {}, {}) == {}

"""compare --rerun: two matrices in the same blocks, each with its own locks. Engine and trials are simulated."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import envmatrix
from envmatrix.__main__ import main
from envmatrix.api.matrix_and_run_lookup import run_matrix_path
from envmatrix.api.paired_reruns import begin_rerun
from envmatrix.api.runs import reopen_run
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Prepared
from envmatrix.errors import ExitCode, InputError, NoTrialError, SkipEnvironmentError
from envmatrix.matrix.model import Workload
from envmatrix.results import RunFolder
from envmatrix.runner import loop
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.maxt import student_quantile
from envmatrix.stats.inference.standard_errors import LONGER
from envmatrix.trials import experiment_setup, images
from envmatrix.trials.missing_image_retry import rebuild_image
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.overrides import Overrides
from tests.synthetic import Machine, make_plan, make_run, make_trials

MATRIX = """version: 2
factors:
  malloc: {glibc: {}, jemalloc: {env: {MALLOC_CONF: "a:1"}}}
environments: {baseline: {}, jemalloc: {malloc: jemalloc}}
workloads: {cnn: {batch_size: 64}}
designs: {default: {environments: [jemalloc], workloads: cnn, min_blocks: 6, max_blocks: 8}}
"""


@dataclass
class FromLocks:
    """An engine whose images come from the lock next to the matrix."""

    places: BuildPaths
    name: str = "local"
    sizes_shm: bool = True
    starts_anywhere: bool = False
    shares_files: bool = True

    def unavailable(self):
        return None

    def prepare(self, image, libraries, progress):
        lock = self.places.locks / "torch.txt"
        if not lock.is_file():
            raise SkipEnvironmentError("there is no lock")
        facts = {"package torch": lock.read_text()}
        return Prepared(image.name, self.name, f"{lock.read_text()}-{len(libraries)}", "python", {}, facts)

    def holds(self, prepared):
        return not prepared.reference.startswith("lost")

    def sweep(self, run):
        return 0


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Return a project with two folders, each with a matrix and a lock with the same name."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(images, "find_engine", lambda name, places: FromLocks(places, name))
    monkeypatch.setattr(experiment_setup, "prepare_data_sets", lambda workloads, *_: dict(workloads))
    monkeypatch.chdir(tmp_path)
    for side, version in (("before", "2.12"), ("after", "2.13")):
        locks = tmp_path / side / "containers" / "locks"
        locks.mkdir(parents=True)
        (locks / "torch.txt").write_text(version)
        (tmp_path / side / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def made_up(monkeypatch, speed, outcome=None):
    """Replace trials by simulated ones with these speeds."""

    def run_trial(begun, slot, progress):
        made = make_trials(begun.plan, Machine(speed, noise=0.01, outcome=outcome or {}), begun.plan.max_blocks)
        return next(trial for trial in made if trial.trial == slot.trial)

    monkeypatch.setattr(loop, "run_with_rebuild", run_trial)


def versions(run):
    return {key: facts["package torch"] for key, facts in run.images.items()}


BOTH = {"old.default@local": "2.12", "new.default@local": "2.13"}


def test_each_side_is_made_from_its_own_locks_and_compared_with_the_other(two):
    run = begin_rerun("before", "after/matrix.yaml").run
    assert versions(run) == BOTH
    assert [(arm.environment, arm.runs, arm.reference) for arm in run.arms] == [
        ("old.baseline", "old.baseline", None),
        ("control", "old.baseline", "old.baseline:cnn@local"),
        ("new.baseline", "new.baseline", "old.baseline:cnn@local"),
    ]


def test_environments_that_are_named_are_each_compared_with_their_own_old_side(two):
    run = begin_rerun("before", "after", overrides=Overrides(environments=("jemalloc", "baseline"))).run
    assert {arm.environment: arm.reference for arm in run.arms} == {
        "old.jemalloc": None,
        "control": "old.jemalloc:cnn@local",
        "new.jemalloc": "old.jemalloc:cnn@local",
        "old.baseline": None,
        "new.baseline": "old.baseline:cnn@local",
    }


def test_it_is_resumed_from_its_own_folder_alone(two):
    begun = begin_rerun("before", "after")
    for side in ("before", "after"):
        shutil.rmtree(two / side)
    again = reopen_run(begun.run.name, NewRun())
    assert again.prepared == begun.prepared
    assert {key: done.reference for key, done in again.prepared.items()} == {
        ("old.default", "local"): "2.12-0",
        ("new.default", "local"): "2.13-0",
    }
    (begun.folder.path / "sides" / "old" / "containers" / "locks" / "torch.txt").write_text("2.11")
    with pytest.raises(InputError, match=r"image old\.default on local .* was 2\.12, and is now 2\.11"):
        reopen_run(begun.run.name, NewRun())


def test_an_image_that_is_lost_is_made_again_from_the_locks_of_its_side(two):
    begun = begin_rerun("before", "after")
    for side in ("before", "after"):
        shutil.rmtree(two / side)
    for slot in begun.plan.block(0):
        key = (begun.run.environments[slot.arm.runs].image_key, "local")
        whole = begun.prepared[key]
        begun.prepared[key] = Prepared(whole.image, "local", "lost", "python", {}, whole.facts)
        rebuild_image(begun, slot, NoTrialError("gone"), print)
        assert begun.prepared[key] == whole


@pytest.mark.parametrize(
    ("speed", "options", "code", "said"),
    [
        (0.8, ("--fail-slower", "5%"), ExitCode.SLOWER, "slower by more than 5.0%"),
        (0.8, (), ExitCode.FINE, "times as fast as old.baseline (95 % CI "),
        (1.0, ("--fail-slower", "5%"), ExitCode.FINE, "not slower by more than 5.0%"),
    ],
)
def test_it_is_a_gate(two, monkeypatch, capsys, speed, options, code, said):
    made_up(monkeypatch, {"new.baseline": speed})
    assert main(["compare", "--rerun", "before", "after", "--name", "gate", "--quiet", *options]) == code
    first = capsys.readouterr().out
    assert said in first
    assert main(["compare", "gate", *options]) == code
    assert capsys.readouterr().out == first
    assert (two / "results" / "gate" / "report.md").is_file()


def test_a_gate_that_cannot_say_tells_the_command_that_lets_it(two, monkeypatch, capsys):
    """Guards against 'too few trials' without a command that helps."""
    made_up(monkeypatch, {})
    gate = ["compare", "--rerun", "before", "after", "--fail-slower"]
    assert main([*gate, "5%", "--name", "few", "--max-blocks", "3"]) == ExitCode.FINE
    more = r"envmatrix resume few --budget \S+ --max-blocks 6 --target 2.75%"
    few = rf"a verdict needs 6 blocks or fewer: {more}, then: (.*)"
    then = re.search(few, capsys.readouterr().err)
    assert then is not None
    assert then[1] == "envmatrix compare few --fail-slower 5%"
    assert main(then[1].split()[1:]) == ExitCode.FINE
    assert re.search(few, capsys.readouterr().err), "told again of the stored run"
    assert main([*gate, "0.5%", "--name", "close"]) == ExitCode.FINE
    assert re.search(r"needs [1-9]\d+ blocks or fewer: .* --target 0.275%, then", capsys.readouterr().err)
    assert main([*gate, "5%", "--name", "sure"]) == ExitCode.FINE
    assert "a verdict needs" not in capsys.readouterr().err


def test_files_of_a_program_that_differ_between_the_sides_are_told(two):
    """The new side's program runs on both sides: a slowdown from the program itself would be missed."""
    own = "cnn: {command: [python, train.py], metric: {wall: true}}"
    for side in ("before", "after"):
        (two / side / "matrix.yaml").write_text(MATRIX.replace("cnn: {batch_size: 64}", own))
        (two / side / "train.py").write_text("print(1)")
    said: list[str] = []
    begin_rerun("before", "after", new_run=NewRun(name="alike", progress=said.append))
    assert any("both sides run the program next to" in line and line.endswith("matrix.yaml") for line in said)
    (two / "after" / "train.py").write_text("print(2)")
    begin_rerun("before", "after", new_run=NewRun(name="unlike", progress=said.append))
    assert any("changes of the program (train.py) are not measured" in line for line in said)


def test_a_new_side_whose_trials_fail_does_not_pass(two, monkeypatch, capsys):
    made_up(monkeypatch, {}, {"new.baseline": "failed"})
    code = main(["compare", "--rerun", "before", "after", "--fail-slower", "5%", "--quiet"])
    assert code == ExitCode.SOME_FAILED
    assert "cannot say" in capsys.readouterr().out


def test_from_python_it_gives_what_the_command_line_shows(two, monkeypatch, capsys):
    made_up(monkeypatch, {"new.baseline": 0.8})
    found = envmatrix.rerun("before", two / "after", name="gate", allowed="5%", max_blocks=7)
    assert (found.exit_code, [item.status for item in found.items]) == (ExitCode.SLOWER, ["slower"])
    assert {trial.block for trial in envmatrix.load("gate").trials()} == set(range(7))
    main(["compare", "gate", "--fail-slower", "5%", "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.to_json()))


def test_the_intervals_of_several_environments_hold_together(two, monkeypatch, capsys):
    made_up(monkeypatch, {})
    words = ["compare", "--rerun", "before", "after", "--environments", "baseline,jemalloc", "--json", "--quiet"]
    assert main(words) == ExitCode.FINE
    found = json.loads(capsys.readouterr().out)
    assert [item["new"] for item in found["comparisons"]] == ["new.baseline", "new.jemalloc"]
    assert "Short run" in found["cautions"][-1] or found["cautions"][-1] == LONGER
    (folder,) = (path for path in (two / "results").iterdir() if path.is_dir())
    alone = {effect.environment: effect for effect in envmatrix.load(folder.name).effects}
    for item in found["comparisons"]:
        effect = alone[item["new"]]
        reach = math.log(item["high"] / item["ratio"]) / math.log(effect.high / effect.ratio)
        quantile = [student_quantile(effect.units, 1 - (1 - LEVEL) / tails) for tails in (4, 2)]
        assert reach == pytest.approx(quantile[0] / quantile[1])
        assert item["one_sided"] is None, "no limit is given"


def test_a_side_that_cannot_be_had_is_nothing_to_compare(two, capsys):
    (two / "after" / "containers" / "locks" / "torch.txt").unlink()
    assert main(["compare", "--rerun", "before", "after"]) == ExitCode.NOTHING_RAN
    assert "new.baseline is not available on local" in capsys.readouterr().err
    assert not (two / "results").exists()


@pytest.mark.parametrize(
    ("edit", "words", "said"),
    [
        (("batch_size: 64", "batch_size: 32"), (),
         "before/matrix.yaml:5:18: workload 'cnn' differs from the one in after/matrix.yaml:5:18"),
        (("jemalloc: {malloc: jemalloc}", "other: {malloc: jemalloc}"), ("--environments", "other"),
         "before/matrix.yaml:4:15: old: no environment 'other'"),
        (("workloads: {cnn", "workloads: {mlp: {batch_size: 8}, cnn"), ("--workloads", "mlp"),
         "before/matrix.yaml:5:12: workload 'mlp' is missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_with_its_place(two, capsys, edit, words, said):
    text = MATRIX.replace(*edit).replace("environments: [jemalloc]", "environments: [baseline]")
    (two / "after" / "matrix.yaml").write_text(text)
    assert main(["compare", "--rerun", "before", "after", *words]) == ExitCode.BAD_INPUT
    assert said in capsys.readouterr().err
    assert not (two / "results").exists()


def stored(two, version):
    """Return a run of one matrix, and copy ``after`` into the current folder."""
    begun = begin_rerun("before", "before")
    environments = {name: replace(environment, side=None) for name, environment in begun.run.environments.items()}
    images = {"default@local": {"package torch": version}}
    run = begun.run.model_copy(update={"sides": {}, "environments": environments, "images": images})
    folder = RunFolder(two / "results" / "stored")
    folder.create(run, MATRIX)
    shutil.copytree(two / "after", two, dirs_exist_ok=True)
    return folder


def test_a_run_is_a_side_where_its_bits_can_be_had_again(two):
    folder = stored(two, "2.13")
    assert versions(begin_rerun("before", "stored").run) == BOTH
    folder = stored(two, "2.12")
    with pytest.raises(InputError, match=r"package torch was 2\.12, and is now 2\.13"):
        begin_rerun(folder.path, "after")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("before", "after", "--budget", "5m"), "--budget works only with --rerun"),
        (("before", "after", "--launcher", "slurm"), "--launcher works only with --rerun"),
        (("before", "after", "--nodes", "2"), "--nodes works only with --rerun"),
        (("--rerun", "before", "after", "--nodes", "2"), "--nodes means nothing to launcher here"),
        (("--rerun", "before"), "--rerun compares two"),
        (("--rerun", "before", "after", "--anyway"), "--anyway is for stored runs"),
        (("--rerun", "before", "nowhere"), "'nowhere' is not a matrix, a run, or a folder with a matrix.yaml"),
        (("--rerun", "before", "after", "--name", "a/b"), "is not a valid name"),
    ],
)
def test_what_is_not_understood_is_said(two, capsys, words, said):
    assert main(["compare", *words]) == ExitCode.BAD_INPUT
    assert said in capsys.readouterr().err


def test_a_run_of_two_matrices_is_neither_a_side_nor_packed(two, capsys, monkeypatch):
    made_up(monkeypatch, {})
    assert main(["compare", "--rerun", "before", "after", "--name", "both", "--quiet"]) == ExitCode.FINE
    assert main(["compare", "--rerun", "both", "after"]) == ExitCode.BAD_INPUT
    assert str(Path("results/both/sides/old")) in capsys.readouterr().err
    assert main(["pack", "both"]) == ExitCode.BAD_INPUT
    assert "compares two matrices" in capsys.readouterr().err
    assert versions(begin_rerun("results/both/sides/old", "results/both/sides/new").run) == BOTH


def test_the_matrix_of_a_program_on_the_command_line_is_one_in_its_folder(tmp_path, monkeypatch):
    """Guards against the matrix that comes with envmatrix, next to which no program lies."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    workloads = {"cnn": Workload(name="cnn", command=("python", "train.py"), files=str(tmp_path))}
    run = make_run(make_plan(("fast",)), workloads=workloads, command=("bench", "--", "python", "train.py"))
    assert run_matrix_path(run) == tmp_path / "matrix.yaml"
    (tmp_path / "mine.yaml").touch()
    saved = run.model_copy(update={"command": ("bench", "--save", str(tmp_path / "mine.yaml"), *run.command[1:])})
    assert run_matrix_path(saved) == tmp_path / "mine.yaml"

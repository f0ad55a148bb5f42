"""A user's own program: evidence of equal work, several metrics, and files edited during the measurement."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from envmatrix.__main__ import main
from envmatrix.errors import ExitCode, InputError
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import FOR_ANY
from envmatrix.report.formats.exports import successful_trials_csv
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import summarise_measurements
from envmatrix.runner.running_estimate import RunningEstimate
from envmatrix.stats.comparisons.between_runs import compare_runs
from envmatrix.stats.comparisons.environment_pairs import compare_environments
from envmatrix.stats.effects import Flag
from envmatrix.stats.measurements import fold_trials
from envmatrix.trials.user_program.file_digests import LARGEST_BYTES, changed_file_texts, program_files
from tests.synthetic import Machine, copied, make_plan, make_run, make_trials, write_run

PLAN = make_plan(("cheat", "honest"))
CHECKED = Workload.model_validate({
    "name": "cnn", "command": ["python", "train.py"],
    "metrics": {
        "throughput": {"regex": "t ([0-9]+)", "unit": "images/s"},
        "memory": {"json_file": "out.json:m", "unit": "B", "better": "lower"},
        "score": {"json_file": "out.json:s", "unit": "points"},
    },
    "check": [{"name": "loss", "regex": "l ([0-9]+)", "tolerance": 0.05}],
})  # fmt: skip
UNCHECKED = CHECKED.model_copy(update={"check": ()})


def own(numbers, checks=None, speed=None, seed=1):
    """Yield trials of a program that reports numbers by (environment, block), and optionally checks."""
    for trial in make_trials(PLAN, Machine(speed or {"cheat": 3.0, "honest": 1.1}, noise=0.01), 8, seed):
        base = trial.document
        found = checks(trial) if checks else []
        more = [{"name": name, "value": value, "better": "lower"} for name, value in numbers(trial).items()]
        yield replace(
            trial,
            document={
                **{key: value for key, value in base.items() if key not in ("data", "result")},
                "metrics": {**base["metrics"], "value": base["metrics"]["samples_per_s"]},
                "more_metrics": more, "checks": found,
            },
        )  # fmt: skip


def told(workload, checks=None, numbers=lambda trial: {"memory": 1e9, "score": 5.0}):
    run = make_run(PLAN, workloads={"cnn": workload})
    return summarise_measurements(run, fold_trials(PLAN, own(numbers, checks)))


def loss(of_cheat, tolerance=0.05, spread=0.0):
    def checks(trial):
        value = of_cheat if trial.environment == "cheat" else 2.0 + spread * (trial.block % 2)
        return [{"name": "loss", "value": value, "tolerance": tolerance}]

    return checks


def test_a_program_that_did_a_hundredth_of_the_work_is_not_called_fast():
    group = told(CHECKED, loss(0.02)).groups[0]
    assert group.headline.startswith("honest is 1.1")
    assert "not checked" not in group.headline
    effect = next(row.effect for row in group.rows if row.arm.environment == "cheat")
    assert (effect.verdict, effect.flags, effect.notes) == (
        "faster", (Flag.UNEQUAL_WORK,), ("loss 0.02, reference 2 to 2",)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("of_cheat", "tolerance", "spread", "equal"),
    [
        (2.0, 0.0, 0.0, True), (2.0001, 0.0, 0.0, False), (2.09, 0.05, 0.0, True), (2.11, 0.05, 0.0, False),
        (1.89, 0.05, 0.0, False), (2.19, 0.0, 0.1, True), (2.21, 0.0, 0.1, False), (float("nan"), 0.05, 0.0, False),
        (None, 0.05, 0.0, False),
    ],
)  # fmt: skip
def test_a_check_is_compared_as_loss_and_accuracy_are(of_cheat, tolerance, spread, equal):
    found = told(CHECKED, loss(of_cheat, tolerance, spread)).analysis.find("cheat:cnn@local")
    assert (Flag.UNEQUAL_WORK not in found.flags) == equal


def drawn(trial, name="loss", tolerance=0.01):
    """Return a number that varies alike in every environment, like that of an unseeded program."""
    return {"name": name, "value": 0.5 + 0.2 * (hash((trial.block, trial.position)) % 7), "tolerance": tolerance}


def test_a_check_whose_number_varies_in_the_baseline_itself_is_no_check_and_every_report_says_so(tmp_path):
    summary = told(CHECKED, lambda trial: [drawn(trial)])
    assert summary.groups[0].headline.endswith(" Equal work not checked.")
    for text in (to_markdown(summary), to_html(summary), json.dumps(summary_to_json(summary)), printed(summary)):
        words = " ".join(text.split())
        assert "cannot be used as a check: in baseline itself it varies from 0.5 to " in words
        assert ", more than its tolerance of 1%" in words
    compared = compare_environments(summary.run, summary.measured, "baseline", "cheat")
    assert any("cannot be used as a check" in text for text in compared.cautions)
    live = RunningEstimate(PLAN, {"cnn": CHECKED})
    for trial in own(lambda _: {}, lambda trial: [drawn(trial)]):
        live.add(trial)
    assert "equal work not checked" in live.headline()


def test_of_several_checks_a_stable_one_is_enough():
    both = CHECKED.model_copy(update={"check": (*CHECKED.check, CHECKED.check[0].model_copy(update={"name": "steps"}))})
    summary = told(both, lambda trial: [drawn(trial), {"name": "steps", "value": 100.0, "tolerance": 0.0}])
    assert "not checked" not in summary.groups[0].headline
    (one,) = [caution for caution in summary.cautions if caution.kind.value == "equal-work-unchecked"]
    assert one.text.startswith("loss cannot be used as a check: in baseline itself it varies from 0.")


@pytest.mark.parametrize(("spread", "tolerance", "stable"), [(0.001, 0.0, True), (0.3, 0.2, True), (0.3, 0.1, False)])
def test_a_number_that_varies_by_no_more_than_it_may_is_a_check(spread, tolerance, stable):
    summary = told(CHECKED, loss(2.0, tolerance, spread))
    assert ("not checked" not in summary.groups[0].headline) is stable


def test_without_a_check_every_answer_says_that_equal_work_was_not_checked():
    summary = told(UNCHECKED)
    assert summary.groups[0].headline.endswith(" Equal work not checked.")
    assert "equal-work-unchecked" in [caution.kind.value for caution in summary.cautions]
    for text in (to_markdown(summary), to_html(summary), json.dumps(summary_to_json(summary)), printed(summary)):
        assert "Equal work not checked." in text
    assert not summary_to_json(summary)["best"][0]["equal_work_checked"]
    live = RunningEstimate(PLAN, {"cnn": UNCHECKED})
    for trial in own(lambda _: {}):
        live.add(trial)
    assert "equal work not checked" in live.headline()
    built_in = summarise_measurements(make_run(PLAN), fold_trials(PLAN, make_trials(PLAN, Machine({"cheat": 3.0}), 8)))
    assert "not checked" not in built_in.groups[0].headline


def test_a_comparison_says_what_work_was_not_checked_and_calls_nobody_as_fast_who_did_other_work():
    unchecked = compare_environments(make_run(PLAN, workloads={"cnn": UNCHECKED}), folded(), "baseline", "cheat")
    assert unchecked.items[0].status == "not slower"
    assert unchecked.cautions[0].startswith("equal work not checked: cnn has no `check:`")
    run, measured = make_run(PLAN, workloads={"cnn": CHECKED}), folded(loss(0.02))
    for names in (("baseline", "cheat"), ("cheat", "baseline")):
        found = compare_environments(run, measured, *names)
        assert (found.items[0].status, found.exit_code) == ("other work", ExitCode.OTHER_WORK)
        assert "did other work than" in found.cautions[0]
        assert "not checked" not in " ".join(found.cautions)


def folded(checks=None):
    return fold_trials(PLAN, own(lambda _: {}, checks))


def program_run(path, workload, checks, digest="sha256:1", seed=1):
    folder = write_run(path, PLAN, Machine({}), 0, workloads={"cnn": workload}, programs={"cnn": {"train.py": digest}})
    for trial in own(lambda _: {}, checks, {"honest": 1.0}, seed):
        folder.append(trial)
    return folder


def test_stored_runs_of_a_program_that_was_edited_are_compared_with_a_word_on_it_and_on_its_work(tmp_path):
    olds = [program_run(tmp_path / f"day-{n}", CHECKED, loss(2.0), seed=n) for n in range(3)]
    program_run(tmp_path / "edited", CHECKED, loss(2.0), "sha256:2", seed=8)
    new = program_run(tmp_path / "new", CHECKED, loss(0.02), "sha256:2", seed=9)
    found = compare_runs(olds[0], new, allowed=0.3)
    assert {item.name.partition(":")[0]: (item.runs, item.status, item.unsure) for item in found.items} == {
        "baseline": (3, "not slower", ""), "honest": (3, "not slower", ""),
        "cheat": (3, "other work", ""),
    }  # fmt: skip
    assert "cheat:cnn@local of new did other work than day-0: loss 0.02, reference 2 to 2" in found.cautions
    assert "the program of cnn differs between the runs: train.py" in found.cautions
    same = program_run(tmp_path / "same", UNCHECKED, None)
    assert [text for text in compare_runs(same, copied(same, "other")).cautions if "not" in text][1:] == [
        "equal work not checked: cnn has no `check:` of a number that depends only on the work"
    ]


def printed(summary):
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200, force_terminal=False))
    return out.getvalue()


def test_further_metrics_have_their_own_direction_and_stand_in_every_report():
    def numbers(trial):
        return {"memory": 2**30 * (2.0 if trial.environment == "cheat" else 1.0), "score": 4.0 + (trial.block % 2) / 99}

    summary = told(CHECKED, loss(2.0), numbers)
    memory, score = (summary.analysis.find("cheat:cnn@local", f"own.{name}") for name in ("memory", "score"))
    assert (round(memory.ratio, 3), memory.verdict, score.verdict) == (0.5, "slower", "same")
    assert summary.analysis.primary["cnn"].label == "throughput"
    for text in (to_markdown(summary), to_html(summary), printed(summary)):
        assert "urther metrics" in text
        assert "2 GiB" in text
        assert "points" in text
    effects = {(one["environment"], one["metric"]) for one in summary_to_json(summary)["effects"]}
    assert ("cheat", "own.memory") in effects
    head, first, *_ = successful_trials_csv(summary).splitlines()
    assert head.endswith("own.memory,own.score,check.loss")
    assert first.endswith("1073741824.0,4.0,2.0")


def test_a_record_with_endless_names_fills_no_memory():
    measured = fold_trials(PLAN, own(lambda trial: {f"{trial.trial}-{n}": 1.0 for n in range(50)}))
    assert sum(name.startswith("own.") for name in measured.table) <= 64


HEAD = "version: 2\nenvironments: {baseline: {}}\ndesigns: {d: {workloads: w}}\nworkloads:\n  w:\n    command: [a]\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("    check: {regex: 'x', tolerance: 1%}", "m.yaml:7:20: regex: 'x' has no group"),
        ("    check:\n      - {regex: '(', tolerance: 1%}", "m.yaml:8:17: "),
        ("    check:\n      - {regex: '(x)', tolerance: 100%}", "m.yaml:8:35: "),
        ("    check:\n      - {regex: '(x)', tolerance: -1%}", "must be 0 or lie between 0% and 100%"),
        ("    check:\n      - {regex: '(x)'}", "m.yaml:8:9: "),
        ("    check:\n      - {regex: '(x)', tolerance: 0, tolerence: 1}", "did you mean 'tolerance'?"),
        ("    check: {wall: true, tolerance: 0}", "unknown key 'wall'"),
        ("    check: {json_file: out.json, tolerance: 0}", "must be FILE:dotted.key"),
        ("    check: {regex: '(x)', json_file: 'a:b', tolerance: 0}", "write exactly one of regex and json_file"),
        ("    metrics: {a: {regex: '(x)', beter: lower}}", "did you mean 'better'?"),
        ("    metrics: {a b: {regex: '(x)'}}", "is not a valid name"),
        ("    metrics: {a: {regex: '(x)'}}\n    metric: {wall: true}", "write either `metric` or `metrics`"),
        (
            "    metrics: {a: {json_file: 'a.json:x'}}\n    check: {json_file: 'b.json:x', tolerance: 0}",
            "must come from one file, not from a.json and b.json",
        ),
    ],
)
def test_mistakes_are_named_with_their_place(lines, words):
    with pytest.raises(InputError) as caught:
        parse(HEAD + lines + "\n", Path("m.yaml"))
    assert words in str(caught.value)


def test_checks_and_metrics_belong_to_a_command():
    for key in ("check: {regex: '(x)', tolerance: 0}", "metrics: {a: {regex: '(x)'}}"):
        with pytest.raises(InputError, match="to a workload with a `command`"):
            parse(HEAD.replace("command: [a]", key), Path("m.yaml"))


@pytest.fixture
def program(tmp_path):
    files = {
        "train.py": "1", "beside.py": "2", "notes.txt": "3", "net/__init__.py": "4", "net/deep/__init__.py": "5",
        "net/deep/x.py": "6", "data/x.py": "7", "run.yaml": "8", "out.json": "9",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = ("python", "train.py", "--config", "run.yaml", "--out", "out.json", "/etc/passwd", "../x")
    return Workload.model_validate({
        "name": "w", "command": command, "files": str(tmp_path), "metric": {"json_file": "out.json:a"}
    })  # fmt: skip


def test_the_files_of_a_program_are_those_that_decide_what_it_does(program):
    assert sorted(program_files(program)) == [
        "beside.py", "net/__init__.py", "net/deep/__init__.py", "net/deep/x.py", "run.yaml", "train.py",
    ]  # fmt: skip


def test_a_file_that_was_edited_or_is_gone_is_named(program):
    root, began = Path(program.files), program_files(program)
    assert changed_file_texts(program, began) == []
    (root / "notes.txt").write_text("other")
    (root / "out.json").write_text("other")
    assert changed_file_texts(program, began) == []
    (root / "net/deep/x.py").write_text("other")
    (root / "run.yaml").unlink()
    assert changed_file_texts(program, began) == [
        "run.yaml was deleted since the run started: later trials do other work",
        "net/deep/x.py was edited since the run started: later trials do other work",
    ]


def test_large_data_and_what_is_no_file_are_not_read(program):
    root = Path(program.files)
    with (root / "big.bin").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    (root / "folder.py").mkdir()
    found = program_files(program.model_copy(update={"command": ("python", "big.bin", "folder.py")}))
    assert sorted(found) == ["beside.py", "net/__init__.py", "net/deep/__init__.py", "net/deep/x.py", "train.py"]
    assert program_files(Workload(name="built-in")) == {}


def test_init_writes_a_matrix_whose_commented_lines_are_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    text = Path("matrix.yaml").read_text()
    live = (
        text.replace("    # check:", "    check:")
        .replace("    metric: {", "    # ")
        .replace("# metric: {regex", "metric: {regex")
    )
    (workload,) = parse(live, tmp_path / "matrix.yaml").workloads.values()
    assert (workload.metric.regex is not None, workload.check[0].tolerance) == (True, 0.05)
    every = parse(text.replace("      # - ", "      - "), tmp_path / "matrix.yaml")
    assert set(every.designs["default"].environments) == set(FOR_ANY), "those that are left out can be put in"

"""For odd content of a run, every command gives a sensible answer or one message, and the right exit code."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

from envmatrix.__main__ import main
from envmatrix.results import RunFolder
from tests.synthetic import MATRIX_TEXT, Machine, make_environment, make_plan, make_run, make_trials

CELLS = {"baseline": ("glibc", "gnu"), "t": ("tc", "gnu"), "i": ("glibc", "intel"), "ti": ("tc", "intel")}
LEVELS = {
    name: make_environment(name, dict(zip(("malloc", "openmp"), cell, strict=True))) for name, cell in CELLS.items()
}
HOSTILE = "</td><script>x</script>\x1b[31mred\x07\u202e|`[bold]"


def measured(**numbers):
    return lambda trial: replace(
        trial, document={**trial.document, "metrics": {**trial.document["metrics"], **numbers}}
    )


def failed(trial):
    return replace(trial, outcome="failed", reason=HOSTILE, document=None)


def only(condition, change):
    return lambda trial: change(trial) if condition(trial) else trial


def huge(trial):
    return measured(samples_per_s=10**300 if trial.environment == "t" else 5e-324, peak_rss_bytes=10**400)(trial)


ODD = {
    "all failed": (8, failed),
    "no trial": (0, None),
    "one block": (1, None),
    "half of the baseline failed": (8, only(lambda t: t.environment == "baseline" and t.block % 2, failed)),
    "a cell is missing": (8, only(lambda t: t.environment == "ti", failed)),
    "zeros": (8, measured(samples_per_s=0, peak_rss_bytes=0)),
    "negative": (8, measured(samples_per_s=-5.0)),
    "all alike": (8, measured(samples_per_s=100.0)),
    "not finite": (8, lambda t: measured(samples_per_s=float("nan" if t.block % 2 else "inf"))(t)),
    "huge": (8, huge),
}
CALLS = (
    ["report", "odd"], ["report", "odd", "--json"], ["report", "odd", "--as", "csv"],
    ["report", "odd", "--as", "trials-csv"], ["report", "odd", "--as", "markdown"],
    ["report", "odd", "--as", "pyperf"], ["report", "odd", "--as", "openmetrics"], ["report", "odd", "--as", "junit"],
    ["figure", "forest", "odd"], ["figure", "time", "odd"],
    ["compare", "odd", "--environments", "baseline,t"], ["compare", "odd", "again", "--anyway"], ["history"],
)  # fmt: skip


def write(path, names=("t", "i", "ti"), blocks=8, change=None, **more):
    plan = make_plan(names, workloads=more.pop("workloads", ("cnn",)))
    folder = RunFolder(path / "odd")
    folder.create(make_run(plan, "odd", **{"environments": LEVELS, **more}), MATRIX_TEXT)
    for trial in make_trials(plan, Machine({"t": 1.2, "ti": 1.3}), blocks):
        folder.append(change(trial) if change else trial)
    return folder


def and_again(folder):
    """Write a copy of a run with another name next to it."""
    again = RunFolder(folder.path.with_name("again"))
    shutil.copytree(folder.path, again.path)
    again.run_file.write_text(again.run_file.read_text().replace('"name": "odd"', '"name": "again"', 1))


def call(capsys, path, arguments):
    """Run one command; its output may not report a bug or contain terminal control characters."""
    code = main([*arguments, "--results", str(path)])
    out, err = capsys.readouterr()
    assert "bug in envmatrix" not in err, err
    assert not {"\x1b", "\x07", "\u202e"} & set(out + err), arguments
    assert (code == 0) == (not err.startswith("envmatrix: ")), (arguments, code, err)
    return code, out + err


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("blocks", "change"), ODD.values(), ids=ODD.keys())
def test_every_command_answers(tmp_path, capsys, blocks, change):
    and_again(write(tmp_path, blocks=blocks, change=change))
    for arguments in CALLS:
        code, _ = call(capsys, tmp_path, arguments)
        assert code == 0 or (code == 2 and arguments[0] in ("figure", "report"))
    assert call(capsys, tmp_path, CALLS[0])[0] == 0


def test_names_that_steer_a_terminal_are_shown_as_text(tmp_path, capsys):
    levels = {"environments": {}, "design": {"cumulative": [HOSTILE.translate(dict.fromkeys(range(32))), "t"]}}
    and_again(write(tmp_path, (HOSTILE, "t"), workloads=(HOSTILE, "--x"), **levels))
    for arguments in [*CALLS, ["compare", "odd", "--environments", HOSTILE, "--environments", "t"]]:
        call(capsys, tmp_path, arguments)


def test_one_environment_alone_gets_a_report(tmp_path, capsys):
    write(tmp_path, ())
    assert "Nothing was compared with" in call(capsys, tmp_path, ["report", "odd"])[1]


def test_values_that_make_no_ratio_are_told(tmp_path, capsys):
    write(tmp_path, change=measured(samples_per_s=0))
    text = call(capsys, tmp_path, ["report", "odd", "--warnings"])[1]
    assert "none of 8 successful trials has a throughput above 0" in text


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda body: body[:3000] + b"\0" * 500 + body[3500:], "damaged"),
        (lambda body: bytes(range(256)) * 9 + b"\n", "damaged"),
        (lambda body: re.sub(rb'"node":"[^"]*"', b'"node":{"a":1}', body, count=1), "not a trial"),
    ],
    ids=["zeros", "binary", "wrong type"],
)
def test_a_damaged_line_is_one_message(tmp_path, capsys, spoil, words):
    and_again(folder := write(tmp_path))
    folder.trials_file.write_bytes(spoil(folder.trials_file.read_bytes()))
    for arguments in CALLS[:-1]:
        code, text = call(capsys, tmp_path, arguments)
        assert code == 2
        assert words in text
        assert "trials.jsonl:" in text


def test_a_cut_file_is_reported_as_far_as_it_goes(tmp_path, capsys):
    folder = write(tmp_path)
    body = folder.trials_file.read_bytes()
    folder.trials_file.write_bytes(body[: len(body) * 2 // 3])
    assert "fewer than 6 complete blocks" in call(capsys, tmp_path, ["report", "odd"])[1]


def test_a_summary_of_another_program_is_passed_over(tmp_path, capsys):
    write(tmp_path)
    call(capsys, tmp_path, ["report", "odd"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text('{"schema": 1, "arms": [3, null, {"median": 1e400}]}')
    body = json.loads(call(capsys, tmp_path, ["history", "--json"])[1])
    assert (body["runs"], body["unreadable"]) == (1, ["other"])


def test_arms_that_stand_twice_in_a_run_are_named(tmp_path, capsys):
    and_again(folder := write(tmp_path))
    body = json.loads(folder.run_file.read_text())
    body["arms"].append({**body["arms"][2], "name": "another"})
    folder.run_file.write_text(json.dumps(body))
    for arguments in CALLS[:-1]:
        code, said = call(capsys, tmp_path, arguments)
        assert code == 2
        assert "arms: t:cnn@local is listed more than once" in said

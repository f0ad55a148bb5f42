"""Trials as Parquet, read back by pyarrow."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from envmatrix.__main__ import main
from envmatrix.report.formats.exports import trials_parquet
from envmatrix.report.report_data import summarise_measurements
from envmatrix.stats.measurements import fold_trials
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run

HOSTILE = "a\x00\ud800\x1b"


def summary(blocks=8, names=("fast", "broken")):
    plan = make_plan(names)
    machine = Machine({"fast": 1.3}, noise=0.02, outcome={"broken": "failed"})
    return summarise_measurements(make_run(plan), fold_trials(plan, make_trials(plan, machine, blocks)))


def read(data):
    return pytest.importorskip("pyarrow.parquet").read_table(io.BytesIO(data))


def test_parquet_has_a_row_a_trial_and_null_for_what_a_broken_one_lacks():
    made = summary()
    table = read(trials_parquet(made))
    rows = table.to_pylist()
    assert len(rows) == len(made.measured.trials.arm) == 4 * 8
    broken = [row for row in rows if row["environment"] == "broken"]
    assert {(row["outcome"], row["samples_per_s"]) for row in broken} == {("failed", None)}
    fast = {row["block"]: row["samples_per_s"] for row in rows if row["environment"] == "fast"}
    arm = next(arm.name for arm in made.plan.arms if arm.environment == "fast")
    assert [fast[block] for block in made.measured.blocks] == made.measured.of(arm, "samples_per_s").tolist()
    assert table.schema.field("peak_rss_bytes").metadata == {b"unit": b"B", b"better": b"lower"}
    assert table.schema.metadata[b"envmatrix.run"] == made.run.name.encode()


@pytest.mark.parametrize("odd", [summary(0), summary(2, (HOSTILE,))], ids=["no trial", "hostile name"])
def test_an_odd_run_is_a_table_too(odd):
    assert read(trials_parquet(odd)).num_rows == len(odd.measured.trials.arm)


def test_the_command_writes_bytes_to_a_file_and_refuses_a_terminal(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    write_run(tmp_path / "shown", make_plan(("fast",)), Machine({"fast": 1.3}), 6)
    asked = ["report", "shown", "--as", "parquet", "--results", str(tmp_path)]
    assert main([*asked, "--output", str(tmp_path / "x.parquet")]) == 0
    assert read((tmp_path / "x.parquet").read_bytes()).num_rows == 3 * 6
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    assert main(asked) == 2
    assert "--output FILE" in capsys.readouterr().err


def test_without_pyarrow_a_message_says_what_to_install_or_to_take_instead(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    write_run(tmp_path / "shown", make_plan(("fast",)), Machine({"fast": 1.3}), 6)
    assert main(["report", "shown", "--as", "parquet", "--results", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "-m pip install pyarrow" in told
    assert "--as trials-csv" in told

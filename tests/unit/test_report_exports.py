"""Exports, read back by the programs they are for."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from envmatrix.errors import InputError
from envmatrix.report.exports import effects_csv, figure_svg, pyperf_json, trials_csv
from envmatrix.report.summary import summarise, summarise_measured
from envmatrix.stats.measurements import fold
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    plan = make_plan(("fast", "=cmd|calc"))
    path = tmp_path_factory.mktemp("run") / "run"
    return summarise(write_run(path, plan, Machine({"fast": 1.3}, noise=0.02), 8))


def test_csv_has_a_line_an_effect_and_no_formula_for_a_spreadsheet(summary):
    rows = list(csv.DictReader(io.StringIO(effects_csv(summary))))
    fast = next(row for row in rows if (row["environment"], row["primary"]) == ("fast", "True"))
    assert float(fast["low"]) < 1.3 < float(fast["high"])
    assert "=cmd|calc" not in {row["environment"] for row in rows}
    assert "'=cmd|calc" in {row["environment"] for row in rows}
    assert len(list(csv.reader(io.StringIO(trials_csv(summary))))) == 1 + 4 * 8


def test_pyperf_reads_and_compares_what_is_exported(summary, tmp_path):
    pytest.importorskip("pyperf")
    files = {}
    for environment in ("baseline", "fast"):
        files[environment] = tmp_path / f"{environment}.json"
        files[environment].write_text(pyperf_json(summary, environment))

    def pyperf(*arguments):
        command = [sys.executable, "-m", "pyperf", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    compared = pyperf("compare_to", files["baseline"], files["fast"])
    assert "1.3" in compared
    assert "faster" in compared
    assert "Total number of values: 8" in pyperf("stats", files["fast"])


def test_figures_are_whole_svg_files(summary):
    for kind in ("forest", "time"):
        root = ET.fromstring(figure_svg(summary, kind))
        assert root.tag.endswith("svg")
        assert root.find("{http://www.w3.org/2000/svg}style") is not None


def test_hostile_names_leave_a_figure_whole():
    hostile = "</svg><script>\x00\x1b\ud800&\"'"
    plan = make_plan((hostile,), workloads=(hostile,))
    run = make_run(plan)
    made = summarise_measured(run, fold(plan, make_trials(plan, Machine({}), 7)))
    for kind in ("forest", "time"):
        names = {element.tag.rpartition("}")[2] for element in ET.fromstring(figure_svg(made, kind)).iter()}
        assert "script" not in names
    effects_csv(made).encode()
    pyperf_json(made, hostile).encode()


@pytest.mark.parametrize(
    "call",
    [
        lambda s: pyperf_json(s, "fas"),
        lambda s: figure_svg(s, "forrest"),
        lambda s: figure_svg(s, "forest", 4),
        lambda s: pyperf_json(summarise_measured(s.run, fold(s.plan, [])), "fast"),
        lambda s: figure_svg(replace(s, measured=fold(s.plan, [])), "time"),
    ],
)
def test_what_cannot_be_exported_is_bad_input_with_a_remedy(summary, call):
    with pytest.raises(InputError) as caught:
        call(summary)
    assert caught.value.remedy

"""The page about a gate in CI: its example files are used as printed. Tables of blocks match the statistics."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest
import yaml

from envmatrix.stats.comparisons.result import status_of
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.effects import LEVEL, draw_conclusion
from envmatrix.stats.inference.standard_errors import block_gaps
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.pairing import summarise_pairs
from tests.synthetic import Machine, make_plan, make_trials
from validation.expected_widths import TABLES, blocks_to_pass, half_width

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = (HOW_TO / "gate.md").read_text()
FILES = [yaml.safe_load(text) for text in re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("page", TABLES)
def test_a_table_of_blocks_is_what_its_command_prints(page):
    assert "\n".join(TABLES[page]()) in (HOW_TO / page).read_text()


@pytest.mark.parametrize("noise", [0.03, 0.05, 0.1])
def test_about_nine_of_ten_gates_pass_after_the_blocks_of_the_table(noise):
    blocks = blocks_to_pass(noise, 0.05)
    differences = np.random.default_rng(1).normal(0.0, noise * math.sqrt(1.5), (1000, blocks))
    numbers = summarise_pairs(differences, block_gaps(15.0 * np.arange(blocks)))
    found = [
        draw_conclusion(*row, 1, 2, LEVEL, 0.03).one_sided
        for row in zip(numbers.mean.tolist(), numbers.error.tolist(), numbers.units.tolist(), strict=True)
    ]
    passed = mean(status_of(*bounds, 0.05) == "not slower" for bounds in found)
    assert 0.87 < passed < 0.95


@pytest.mark.parametrize("environments", [1, 4])
def test_an_interval_is_as_wide_as_the_table_says(environments):
    plan = make_plan([f"e{number}" for number in range(environments)])
    found = [
        effect.half_width
        for seed in range(30)
        for effect in estimate(
            plan, fold_trials(plan, make_trials(plan, Machine({}, noise=0.03), 12, seed)), metrics=()
        ).primary_effects()
        if not effect.is_control and effect.half_width
    ]
    assert median(found) == pytest.approx(half_width(0.03, 12, environments), rel=0.1)


def test_both_files_run_the_same_gate():
    github, gitlab = FILES
    (script,) = (step["run"] for step in github["jobs"]["speed"]["steps"] if "run" in step)
    lines = (script.splitlines()[-1], gitlab["speed"]["script"][-1])
    assert {re.sub(r"(\"\$RUNNER_TEMP/base\"|\.\./base)", "BASE", line) for line in lines} == {
        "envmatrix compare --rerun BASE . --fail-slower 5% --budget 10m --name gate --junit gate.xml"
    }
    assert gitlab["speed"]["artifacts"]["paths"] == ["results/gate"]
    assert gitlab["speed"]["artifacts"]["reports"] == {"junit": "gate.xml"}
    assert github["jobs"]["speed"]["steps"][-1]["with"]["path"].split() == ["results/gate", "gate.xml"]

"""The page about a gate in CI: its example files are used as printed, and its numbers match the statistics."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import pytest
import yaml

from envmatrix.plan.schedule import side_arms
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.within_run import compare_environments
from tests.synthetic import Machine, make_plan, make_run, make_trials

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "gate.md").read_text()
FILES = [yaml.safe_load(text) for text in re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]
PLAN = replace(make_plan(()), arms=side_arms(("baseline",), ("cnn",), ("local",)))


@cache
def blocks_at_5_percent():
    """Return the blocks needed to call two equal environments the same, if their trials vary by 5 %."""
    found = []
    for seed in range(20):
        measured = fold_trials(PLAN, make_trials(PLAN, Machine({}, noise=0.05), 30, seed))
        (item,) = compare_environments(make_run(PLAN), measured, "old.baseline", "new.baseline", 0.05).items
        found.append(30 * (math.log(item.high / item.low) / math.log(1.05)) ** 2)
    return median(found)


@pytest.mark.parametrize(
    ("cv", "blocks", "minutes"), re.findall(r"^\| (\d+) % \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
)
def test_so_many_blocks_show_that_two_alike_are_not_slower(cv, blocks, minutes):
    blocks, wanted = int(blocks), blocks_at_5_percent() * (int(cv) / 5) ** 2
    assert blocks == pytest.approx(wanted, rel=0.1, abs=2), "some more where there are few, as t says"
    assert int(minutes) == math.ceil(blocks * 15 / 60)


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

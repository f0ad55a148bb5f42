"""The documents name what the code has."""

import re
from pathlib import Path

import pytest

from bench import needs
from envmatrix.api.answers import figure
from envmatrix.cli import COMMANDS
from envmatrix.matrix.model import Design, Level, Workload
from envmatrix.matrix.reported import Check, MetricSource

PROJECT = Path(__file__).parents[2]


def text(name):
    return (PROJECT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_readme_names_every_command(name):
    assert f"`{name}`" in text("README.md").partition("## The commands\n")[2].partition("\n## ")[0]


def test_the_readme_is_read_in_a_minute():
    assert text("README.md").count("\n") < 150


def test_the_picture_of_the_readme_is_that_of_the_run_it_names():
    drawn = figure("forest", "reference-default", results=PROJECT / "results")
    words = re.compile(r"<text[^>]*>([^<]*)</text>")
    assert words.findall(text("docs/forest.svg")) == words.findall(drawn) != []


def test_the_answer_in_the_readme_is_that_of_the_run_it_names():
    shown = text("README.md").partition("## A real result")[2].partition("\nSix minutes")[0]
    report = text("results/reference-default/report.md")
    told = {" ".join(re.split(r"[\s|]+", row)) for row in report.splitlines()}
    rows = [" ".join(line.split()) for line in re.findall(r"^      \w.*\d$", shown, re.MULTILINE)]
    assert len(rows) == 10
    assert [row for row in rows if f" {row} " not in told] == []
    tail = " ".join(shown.partition("    noise floor")[2].split())
    headline, best = re.search(r"(mimalloc is .*?blocks\)\.) (Best set: .*)", tail).groups()
    assert headline in report
    assert best in report


INTERVAL = re.compile(r"(\d\.\d+)x? \[(\d\.\d+), (\d\.\d+)\]")


@pytest.mark.parametrize("row", re.findall(r"^\| `(reference-\w+)` (.*)$", text("results/README.md"), re.MULTILINE))
def test_every_interval_that_the_page_of_results_tells_is_in_its_report(row):
    run, said = row
    report = text(f"results/{run}/report.md")
    found = INTERVAL.findall(said)
    assert found
    for ratio, low, high in found:
        forms = (f"{ratio} | {low} to {high}", f"{ratio}, {low} to {high}", f"{ratio} ({low} to {high})")
        assert any(form in report for form in forms), f"{ratio} [{low}, {high}]"


@pytest.mark.parametrize(
    ("model", "not_written"),
    [(Level, set()), (Design, {"name"}), (Workload, {"name", "options"}), (MetricSource, set()), (Check, set())],
)
def test_every_key_of_matrix_yaml_is_explained(model, not_written):
    explained = text("docs/matrix.md")
    assert [key for key in model.model_fields if key not in not_written and f"`{key}`" not in explained] == []


def test_every_kind_of_need_is_listed():
    assert [kind for kind in needs._TESTS if f"`{kind}`" not in text("docs/record.md")] == []

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


@pytest.mark.parametrize(
    ("model", "not_written"),
    [(Level, set()), (Design, {"name"}), (Workload, {"name", "options"}), (MetricSource, set()), (Check, set())],
)
def test_every_key_of_matrix_yaml_is_explained(model, not_written):
    explained = text("docs/matrix.md")
    assert [key for key in model.model_fields if key not in not_written and f"`{key}`" not in explained] == []


def test_every_kind_of_need_is_listed():
    assert [kind for kind in needs._TESTS if f"`{kind}`" not in text("docs/record.md")] == []

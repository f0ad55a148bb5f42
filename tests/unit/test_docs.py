"""Documentation pages: the names and numbers in them match the code."""

import json
import re
import shlex
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from bench import torch_feature_checks
from envmatrix.api.run_results import figure
from envmatrix.cli.command_table import COMMANDS
from envmatrix.matrix import load
from envmatrix.matrix.metric_sources import Check, MetricSource
from envmatrix.matrix.model import Design, Level, Workload

PROJECT = Path(__file__).parents[2]


def text(name):
    return (PROJECT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_readme_names_every_command(name):
    assert f"`{name}`" in text("README.md").partition("## The commands\n")[2].partition("\n## ")[0]


def test_the_readme_is_read_in_a_minute():
    assert text("README.md").count("\n") < 150


def test_the_picture_of_the_readme_is_that_of_the_run_it_names():
    drawn = figure("forest", "reference-steady", results=PROJECT / "results")
    words = re.compile(r"<text[^>]*>([^<]*)</text>")
    assert words.findall(text("docs/forest.svg")) == words.findall(drawn) != []


def test_the_answer_in_the_readme_is_that_of_the_run_it_names():
    shown = text("README.md").partition("## A real result")[2].partition("\n## ")[0]
    summary = json.loads(text("results/reference-steady/summary.json"))
    found = {item["environment"]: item for item in [*summary["effects"], summary["control"]] if item["primary"]}
    cell = r"([\d.]+) \(([\d.]+) to ([\d.]+)\) \| (\w+)(?:: outliers)? \|"
    rows = re.findall(rf"^\| ([\w-]+) \|[^|]*\| {cell} {cell}$", shown, re.MULTILINE)
    assert {name for name, *_ in rows} == set(found)
    for name, *cells in rows:
        effect = found[name]
        for (*figures, verdict), kind in ((cells[:4], ""), (cells[4:], "steady_")):
            assert figures == [f"{effect[kind + key]:.{len(told) - 2}f}" for key, told in zip(
                ("ratio", "low", "high"), figures, strict=True
            )]  # fmt: skip
            assert verdict == effect[f"{kind}verdict"]
    (best,) = summary["best"]
    assert best["headline"] in " ".join(shown.replace("**", "").split())


INTERVAL = re.compile(r"(\d\.\d+)x? \[(\d\.\d+), (\d\.\d+)\]")


def of_search(found):
    """Return the ratios in tune.json, formatted as in a report."""
    if isinstance(found, list):
        return "\n".join(map(of_search, found))
    if not isinstance(found, dict):
        return ""
    own = (
        "{ratio:.2f}, {low:.2f} to {high:.2f}".format(**found)
        if {"ratio", "low"} <= found.keys() and found["low"]
        else ""
    )
    return "\n".join([own, *map(of_search, found.values())])


@pytest.mark.parametrize("row", re.findall(r"^\| `(reference-\w+)` (.*)$", text("results/README.md"), re.MULTILINE))
def test_every_interval_that_the_page_of_results_tells_is_in_its_report(row):
    run, said = row
    search = PROJECT / "results" / run / "tune.json"
    report = of_search(json.loads(search.read_text())) if search.exists() else text(f"results/{run}/report.md")
    found = INTERVAL.findall(said)
    assert found
    for ratio, low, high in found:
        forms = (f"{ratio} | {low} to {high}", f"{ratio}, {low} to {high}", f"{ratio} ({low} to {high}")
        assert any(form in report for form in forms), f"{ratio} [{low}, {high}]"


def test_every_reference_run_has_a_row_that_names_the_command_in_its_record():
    table = text("results/README.md")
    runs = sorted((PROJECT / "results").glob("reference-*"))
    assert len(runs) >= 6
    for run in runs:
        cells = re.search(rf"^\| `{run.name}` \| ([^|]*)", table, re.MULTILINE)
        assert cells, run.name
        if (run / "study.json").exists():
            assert "`envmatrix tune " in cells[1], run.name
            continue
        words = json.loads((run / "run.json").read_text())["command"]
        # The name and the folder of a run may differ.
        named = [word for at, word in enumerate(words) if not {"--name", "--results"} & {word, *words[at - 1 : at]}]
        assert f"`{shlex.join(['envmatrix', *named])}" in cells[1], run.name


def test_the_examples_can_be_run():
    found = sorted((PROJECT / "examples").glob("*/matrix.yaml"))
    assert found
    for path in found:
        matrix = load(path)
        for workload in matrix.workloads.values():
            assert (path.parent / workload.command[1]).is_file()


@pytest.mark.parametrize(
    ("model", "not_written"),
    [(Level, set()), (Design, {"name"}), (Workload, {"name", "options"}), (MetricSource, set()), (Check, set())],
)
def test_every_key_of_matrix_yaml_is_explained(model, not_written):
    explained = text("docs/matrix.md")
    assert [key for key in model.model_fields if key not in not_written and f"`{key}`" not in explained] == []


def test_every_kind_of_need_is_listed():
    assert [kind for kind in torch_feature_checks._TESTS if f"`{kind}`" not in text("docs/record.md")] == []


#: Excerpt of Furo's page of 2025-12-19: sidebars, captions, code and tables.
FURO = """{% block body %}<aside class="sidebar-drawer"><p class="caption" role="heading"></p></aside>
<div class="highlight"><pre></pre></div><div class="table-wrapper x"></div>
<aside class="toc-drawer no-toc"></aside>{% endblock %}"""


def test_a_page_of_the_documentation_can_be_used_by_ear_and_keyboard():
    """Guards against axe-core findings: landmark-unique, aria-required-attr, scrollable-region-focusable."""
    pages = {"!page.html": FURO, "page.html": text("docs/_templates/page.html")}
    page = Environment(loader=DictLoader(pages)).get_template("page.html").render()
    for told in (
        '<aside aria-label="Site" class="sidebar-drawer">', '<aside aria-label="This page" class="toc-drawer no-toc">',
        'role="heading" aria-level="2"', '<pre tabindex="0">', '<div tabindex="0" class="table-wrapper x">',
    ):  # fmt: skip
        assert told in page

"""The files of a release agree with the package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import yaml

from envmatrix.runner.reproduction.pack_crate import CRATE_FILE, make_crate
from envmatrix.version import __version__
from tests.synthetic import make_plan, make_run

PROJECT = Path(__file__).parents[2]
PYPROJECT = (PROJECT / "pyproject.toml").read_text()


def test_the_citation_names_this_version_and_licence():
    cited = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert (cited["version"], cited["license"]) == (__version__, "Apache-2.0")


def test_the_changelog_tells_of_this_version_on_the_day_that_the_citation_names():
    heading = rf"^## \[{re.escape(__version__)}\] - (\S+)$"
    (day,) = re.findall(heading, (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert day == str(yaml.safe_load((PROJECT / "CITATION.cff").read_text())["date-released"])


def test_wheels_named_in_the_documentation_are_of_this_version():
    pages = [*(PROJECT / "docs").glob("*.md"), *(PROJECT / "docs" / "how-to").glob("*.md"), PROJECT / "README.md"]
    named = [name for page in pages for name in re.findall(r"envmatrix-([0-9.]+)-py3", page.read_text())]
    assert set(named) == {__version__}


def test_the_sdist_holds_every_page_that_the_readme_names():
    held = re.search(
        r"^\[tool\.hatch\.build\.targets\.sdist\]\ninclude = \[(.*?)\]", PYPROJECT, re.MULTILINE | re.DOTALL
    )[1]
    names = re.findall(r'"/([^"]+)"', held)
    linked = re.findall(r"\]\(([^)#]+\.(?:md|svg))", (PROJECT / "README.md").read_text())
    assert [page for page in linked if not any(page == name or page.startswith(f"{name}/") for name in names)] == []
    assert {"CHANGELOG.md", "SECURITY.md"} <= set(names)


def test_only_the_job_that_publishes_may_ask_for_a_token_and_it_runs_nothing_of_ours():
    jobs = yaml.safe_load((PROJECT / ".github/workflows/release.yml").read_text())["jobs"]
    assert {name: sorted(job["permissions"]) for name, job in jobs.items()} == {
        "build": ["contents"], "publish": ["attestations", "id-token"],
    }  # fmt: skip
    assert all("run" not in step for step in jobs["publish"]["steps"])


def test_a_pack_describes_itself_as_a_research_object():
    run = make_run(make_plan(("fast",)), "made up")
    contents = {"matrix.yaml": b"x", "run/run.json": b"{}", "run/a b#é.md": b"# A\n"}
    made = make_crate(run, contents)
    assert made == make_crate(run, dict(reversed(contents.items())))
    body = json.loads(made)
    graph = {entity["@id"]: entity for entity in body["@graph"]}
    assert len(graph) == len(body["@graph"])
    assert body["@context"] == "https://w3id.org/ro/crate/1.1/context"
    assert graph[CRATE_FILE] == {
        "@id": CRATE_FILE, "@type": "CreativeWork", "about": {"@id": "./"},
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
    }  # fmt: skip
    root = graph["./"]
    assert {"name", "description", "datePublished", "license"} <= set(root)
    parts = [part["@id"] for part in root["hasPart"]]
    assert parts == ["manifest.json", *map(quote, sorted(contents))]
    assert {graph[part]["@type"] for part in parts} == {"File"}
    assert graph[quote("run/a b#é.md")]["contentSize"] == "4"
    named = [graph["#run"]["instrument"], graph["#run"]["object"], *graph["#run"]["result"], root["mentions"]]
    assert {reference["@id"] for reference in named} <= set(graph)
    assert "made-up-host" not in made.decode()

"""Commands and files that the pages tell readers to write are accepted by the code."""

import re
import shlex
from pathlib import Path

import pytest

from envmatrix.cli.command_table import parse
from envmatrix.matrix import load
from envmatrix.system.resource_paths import bundled_matrix_file

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(page, kind):
    return [body for found, body in BLOCK.findall(page.read_text(encoding="utf-8")) if found == kind]


def commands():
    lines = [(page, line.strip()) for page in PAGES for body in blocks(page, "bash") for line in body.splitlines()]
    return [pytest.param(line, id=f"{page.stem}: {line}") for page, line in lines if line.startswith("envmatrix ")]


def indented():
    """Return the commands in code blocks of README and the other pages, without their comments."""
    found = []
    for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for line in re.findall(r"^    ((?:envmatrix|nox -s (?:bench|build) --) .*)$", text, re.MULTILINE):
            if not re.search(r"[\[>|]|\.\.\. ", line):  # skip commands with optional or omitted parts, and shell syntax
                words = shlex.split(line, comments=True)
                words = words[1:] if words[0] == "envmatrix" else [words[2], *words[4:]]
                found.append(pytest.param(words, id=f"{page.stem}: {line}"))
    return found


@pytest.mark.parametrize("words", indented())
def test_a_command_in_the_readme_or_the_reference_is_one_that_there_is(words):
    parse(words)
    if words[0] == "bench" and words[1].islower() and not words[1].startswith("-"):
        assert words[1] in load(bundled_matrix_file()).designs


@pytest.mark.parametrize("line", commands())
def test_a_command_on_a_page_is_one_that_there_is(line):
    parse(shlex.split(line)[1:])


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")], ids=lambda page: page.stem)
def test_a_matrix_on_a_page_is_one_that_can_be_run(page, tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "requirements.txt").write_text("numpy\n")
    for body in blocks(page, "yaml"):
        (tmp_path / "matrix.yaml").write_text(body)
        load(tmp_path / "matrix.yaml")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")], ids=lambda page: page.stem)
def test_a_program_on_a_page_has_a_python_with_its_packages(page):
    for body in blocks(page, "yaml"):
        brings = ("interpreter:", "image:", "modules:", "requirements:", "conda:", "suite:")
        assert "command: [python" not in body or any(word in body for word in brings)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_python_on_a_page_is_python(page):
    for body in blocks(page, "python"):
        compile(body, page.name, "exec")


def test_every_page_is_one_that_the_search_for_commands_reads():
    assert all(blocks(page, "bash") or blocks(page, "yaml") for page in PAGES)

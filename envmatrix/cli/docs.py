"""``envmatrix docs``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from envmatrix.cli import common
from envmatrix.cli.grammar import Parser
from envmatrix.errors import InputError, suggestion
from envmatrix.system import project, topics


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "page", nargs="?", metavar="PAGE|WORD",
        help="a page such as matrix, or a word of a report or an error such as short-run; without it: which there are",
    )  # fmt: skip
    parser.examples("envmatrix docs", "envmatrix docs control-off-1.0")


def run(arguments: argparse.Namespace) -> int:
    """Print a page, the section on a word, or the list of both; nothing is fetched."""
    pages = project.documentation_pages()
    if arguments.page is None:
        common.print_text(_page_list(pages))
        return 0
    name = arguments.page.removesuffix(".md").rpartition("/")[2].lower()
    if name not in pages and name not in topics.TOPICS:
        raise InputError(f"no page or word {arguments.page!r}", remedy=suggestion(name, [*pages, *topics.TOPICS]))
    text = pages[name if name in pages else topics.PAGE].read_text(encoding="utf-8")
    common.print_text((text if name in pages else topics.topic_section(text, name)).rstrip("\n"))
    return 0


def _page_list(pages: Mapping[str, Path]) -> str:
    titles = {name: page.read_text(encoding="utf-8").split("\n", 1)[0].strip("# ") for name, page in pages.items()}
    lines = [f"{name:14} {titles[name]}\n{'':14} {page}" for name, page in pages.items()]
    return "\n".join([*lines, "", "words of reports and errors:", *(f"  {word}" for word in topics.TOPICS)])

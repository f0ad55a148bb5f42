"""``envmatrix docs``."""

from __future__ import annotations

import argparse

from envmatrix import project
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser
from envmatrix.errors import InputError, suggestion


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("page", nargs="?", metavar="PAGE", help="such as matrix; without it: which pages there are")
    parser.examples("envmatrix docs", "envmatrix docs workloads | less")


def run(arguments: argparse.Namespace) -> int:
    """Print a page, or the list of pages with their titles and files; nothing is fetched."""
    pages = project.documentation()
    if arguments.page is None:
        titles = {name: page.read_text(encoding="utf-8").split("\n", 1)[0].strip("# ") for name, page in pages.items()}
        common.print_text("\n".join(f"{name:14} {titles[name]}\n{'':14} {page}" for name, page in pages.items()))
        return 0
    name = arguments.page.removesuffix(".md").rpartition("/")[2].lower()
    if name not in pages:
        raise InputError(f"no page {arguments.page!r}", remedy=suggestion(name, pages))
    common.print_text(pages[name].read_text(encoding="utf-8").rstrip("\n"))
    return 0

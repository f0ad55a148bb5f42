"""The ``envmatrix docs`` command."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from envmatrix.cli import console_io
from envmatrix.cli.argument_parser import Arguments, Parser, declare
from envmatrix.errors import InputError, suggestion
from envmatrix.system import resource_paths, verdict_and_warning_terms

_ALL = "`envmatrix docs` lists all pages and words"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    text = "a page such as matrix, a word of a report such as short-run, or a term such as block (default: list all)"
    declare(parser, "page", "PAGE|WORD", text, nargs="*")
    parser.examples("envmatrix docs control-off-1.0", "envmatrix docs steady state")


def run(arguments: Arguments) -> None:
    """Print a page, the meaning of a word, or the list of both, all from installed files."""
    pages = resource_paths.documentation_pages()
    console_io.print_text(_found(" ".join(arguments.page), pages) if arguments.page else _page_list(pages))


def _found(asked: str, pages: Mapping[str, Path]) -> str:
    name = asked.removesuffix(".md").rpartition("/")[2].lower()
    if name in pages:
        return _text(pages, name).rstrip("\n")
    for word in verdict_and_warning_terms.TOPICS:
        if verdict_and_warning_terms.term_lookup_key(word) == verdict_and_warning_terms.term_lookup_key(name):
            return verdict_and_warning_terms.topic_section(_text(pages, verdict_and_warning_terms.PAGE), word)
    terms = verdict_and_warning_terms.terms(_text(pages, verdict_and_warning_terms.GLOSSARY))
    for term, line in terms.items():
        if verdict_and_warning_terms.term_lookup_key(term) == verdict_and_warning_terms.term_lookup_key(asked):
            return line
    if row := re.search(rf"^\| `{re.escape(name)}`(?:,.*?)? \| .*$", _text(pages, "matrix"), re.MULTILINE):
        return f"a key of matrix.yaml (envmatrix docs matrix): {row[0]}"
    remedy = suggestion(name, [*pages, *verdict_and_warning_terms.TOPICS, *terms])
    raise InputError(f"no page or word named {asked!r}", remedy=remedy if "did you mean" in remedy else _ALL)


def _text(pages: Mapping[str, Path], name: str) -> str:
    return pages[name].read_text(encoding="utf-8")


def _page_list(pages: Mapping[str, Path]) -> str:
    titles = {name: _text(pages, name).split("\n", 1)[0].strip("# ") for name in pages}
    lines = [f"{name:14} {titles[name]}\n{'':14} {page}" for name, page in pages.items()]
    words = [f"  {word}" for word in verdict_and_warning_terms.TOPICS]
    named = dict.fromkeys(
        line.partition(": ")[0]
        for line in verdict_and_warning_terms.terms(_text(pages, verdict_and_warning_terms.GLOSSARY)).values()
    )
    terms = textwrap.wrap(", ".join(named), 98, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([*lines, "", "words of reports and errors:", *words, "", "other terms:", *terms])

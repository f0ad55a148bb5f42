"""``envmatrix list``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser

if TYPE_CHECKING:
    from envmatrix.matrix import Matrix

SECTIONS = ("factors", "environments", "workloads", "designs", "runs")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "what", nargs="?", choices=SECTIONS, metavar="PART", help=f"only this part: {', '.join(SECTIONS)}"
    )
    shared.add_matrix(parser)
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples("envmatrix list designs", "envmatrix list runs --json")


def run(arguments: argparse.Namespace) -> int:
    """Print one line an entry."""
    from envmatrix.api.places import load_matrix

    matrix = load_matrix(arguments.matrix)
    parts: dict[str, dict[str, str]] = {
        "factors": {name: " | ".join(factor.levels) for name, factor in matrix.factors.items()},
        "environments": {name: _environment(matrix, name) for name in matrix.environments},
        "workloads": {name: _workload(entry) for name, entry in matrix.workloads.items()},
        "designs": {name: _design(entry) for name, entry in matrix.designs.items()},
        "runs": {file.parent.name: "" for file in sorted(arguments.results.glob("*/run.json"))},
    }
    chosen = {key: parts[key] for key in parts if arguments.what in (None, key)}
    if arguments.json:
        common.print_json(chosen)
        return 0
    for key, entries in chosen.items():
        width = max((len(name) for name in entries), default=0)
        lines = [f"  {name:{width}}  {text}".rstrip() for name, text in entries.items()]
        common.print_text("\n".join([f"{key}:", *(lines or ["  (none)"]), ""]))
    return 0


def _environment(matrix: Matrix, name: str) -> str:
    entry = matrix.environments[name]
    levels = ", ".join(f"{factor}={level}" for factor, level in entry.levels.items())
    return "; ".join(part for part in (levels, entry.description) if part)


def _workload(entry: Any) -> str:
    what = " ".join(entry.command) or ", ".join(f"{key}={value}" for key, value in entry.options.items())
    return "; ".join(part for part in (entry.description, what) if part)


def _design(entry: Any) -> str:
    from math import prod

    named = len({*entry.environments, *entry.cumulative}) + 1
    size = prod(map(len, entry.factors.values())) if entry.factors else named
    return f"{entry.description or 'no description'} ({size} environments, {len(entry.workloads)} workloads)"

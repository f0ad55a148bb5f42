"""``envmatrix list``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser

if TYPE_CHECKING:
    from envmatrix.matrix import Design, Matrix, Workload
    from envmatrix.system.plugins import Entry

_MATRIX = ("factors", "environments", "workloads", "designs")
_CATALOGS = ("engines", "launchers", "reports")
SECTIONS = (*_MATRIX, "runs", *_CATALOGS)


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

    wanted = [arguments.what] if arguments.what else list(SECTIONS)
    chosen: dict[str, dict[str, str]] = {}
    if set(wanted) & set(_MATRIX):
        chosen |= _of_matrix(load_matrix(arguments.matrix, common.say_to_stderr))
    chosen["runs"] = {file.parent.name: "" for file in sorted(arguments.results.glob("*/run.json"))}
    if set(wanted) & set(_CATALOGS):
        chosen |= _of_catalogs()
    chosen = {key: chosen[key] for key in wanted}
    if arguments.json:
        common.print_json(chosen)
        return 0
    for key, entries in chosen.items():
        width = max((len(name) for name in entries), default=0)
        lines = [f"  {name:{width}}  {text}".rstrip() for name, text in entries.items()]
        common.print_text("\n".join([f"{key}:", *(lines or ["  (none)"]), ""]))
    return 0


def _of_matrix(matrix: Matrix) -> dict[str, dict[str, str]]:
    return {
        "factors": {name: " | ".join(factor.levels) for name, factor in matrix.factors.items()},
        "environments": {name: _environment(matrix, name) for name in matrix.environments},
        "workloads": {name: _workload(entry) for name, entry in matrix.workloads.items()},
        "designs": {name: _design(entry) for name, entry in matrix.designs.items()},
    }


def _of_catalogs() -> dict[str, dict[str, str]]:
    from envmatrix.build.paths import project_places
    from envmatrix.engines.catalog import ENGINES
    from envmatrix.launchers.catalog import LAUNCHERS
    from envmatrix.report.catalog import REPORTS

    return {
        "engines": {entry.name: _told(entry, engine) for entry, engine in ENGINES.make_all(project_places())},
        "launchers": {entry.name: _told(entry, launcher) for entry, launcher in LAUNCHERS.make_all()},
        "reports": {entry.name: _told(entry, report) for entry, report in REPORTS.make_all()},
    }


def _told(entry: Entry, thing: object) -> str:
    """Say where an entry is from, and what it can that not every one can."""
    from envmatrix.engines.base import BuildsImages, HasImageFiles, RunsAsCommand
    from envmatrix.errors import EnvmatrixError
    from envmatrix.launchers.base import ShowsScripts

    if isinstance(thing, EnvmatrixError):
        return thing.message
    able = {"builds images": BuildsImages, "has image files": HasImageFiles, "runs as a command": RunsAsCommand,
            "shows its scripts": ShowsScripts}  # fmt: skip
    said = [text for text, kind in able.items() if isinstance(thing, kind)]
    file = getattr(thing, "file", None)
    return "; ".join([*([f"of {entry.origin}"] if entry.origin else []), *said, *([f"writes {file}"] if file else [])])


def _environment(matrix: Matrix, name: str) -> str:
    entry = matrix.environments[name]
    levels = ", ".join(f"{factor}={level}" for factor, level in entry.levels.items())
    return "; ".join(part for part in (levels, entry.description) if part)


def _workload(entry: Workload) -> str:
    what = " ".join(entry.command) or ", ".join(f"{key}={value}" for key, value in entry.options.items())
    return "; ".join(part for part in (entry.description, what) if part)


def _design(entry: Design) -> str:
    from math import prod

    named = len({*entry.environments, *entry.cumulative}) + 1
    size = prod(map(len, entry.factors.values())) if entry.factors else named
    return f"{entry.description or 'no description'} ({size} environments, {len(entry.workloads)} workloads)"

"""The ``envmatrix list`` command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare

if TYPE_CHECKING:
    from envmatrix.matrix import Design, Matrix, Workload
    from envmatrix.system.plugins import Entry

_MATRIX_SECTIONS = ("factors", "environments", "workloads", "designs")
_CATALOG_SECTIONS = ("engines", "launchers", "reports")
SECTIONS = (*_MATRIX_SECTIONS, "runs", *_CATALOG_SECTIONS)


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "what", "PART", f"show only this part: {', '.join(SECTIONS)}", nargs="?", choices=SECTIONS)
    shared_options.add(parser, "--matrix", "--results", "--json")
    parser.examples("envmatrix list designs", "envmatrix list runs --json")


def run(arguments: Arguments) -> None:
    """Print one line per entry."""
    from envmatrix.api.matrix_and_run_lookup import load_matrix

    section_names = [arguments.what] if arguments.what else list(SECTIONS)
    sections: dict[str, dict[str, str]] = {}
    if set(section_names) & set(_MATRIX_SECTIONS):
        sections |= _list_matrix(load_matrix(arguments.matrix, console_io.print_progress))
    sections["runs"] = {file.parent.name: "" for file in sorted(arguments.results.glob("*/run.json"))}
    if set(section_names) & set(_CATALOG_SECTIONS):
        sections |= _list_catalogs()
    sections = {key: sections[key] for key in section_names}
    console_io.print_answer(arguments, sections, "".join(_section_text(*section) for section in sections.items()))


def _section_text(title: str, entries: dict[str, str]) -> str:
    width = max((len(name) for name in entries), default=0)
    lines = [f"  {name:{width}}  {text}".rstrip() for name, text in entries.items()]
    return "\n".join([f"{title}:", *(lines or ["  (none)"]), ""])


def _list_matrix(matrix: Matrix) -> dict[str, dict[str, str]]:
    return {
        "factors": {name: " | ".join(factor.levels) for name, factor in matrix.factors.items()},
        "environments": {name: _environment_text(matrix, name) for name in matrix.environments},
        "workloads": {name: _workload_text(entry) for name, entry in matrix.workloads.items()},
        "designs": {name: _design_text(entry) for name, entry in matrix.designs.items()},
    }


def _list_catalogs() -> dict[str, dict[str, str]]:
    from envmatrix.build.paths import project_paths
    from envmatrix.engines.catalog import ENGINES
    from envmatrix.launchers.catalog import LAUNCHERS
    from envmatrix.report.catalog import REPORTS

    catalogs = {
        "engines": ENGINES.make_all(project_paths()), "launchers": LAUNCHERS.make_all(), "reports": REPORTS.make_all(),
    }  # fmt: skip
    return {
        key: {entry.name: _catalog_entry_text(entry, extension) for entry, extension in entries}
        for key, entries in catalogs.items()
    }


def _catalog_entry_text(entry: Entry, extension: object) -> str:
    """Return the origin of an entry and its optional abilities."""
    from envmatrix.engines.base import BuildsImages, HasImageFiles, RunsAsCommand
    from envmatrix.errors import EnvmatrixError
    from envmatrix.launchers.base import ShowsScripts

    if isinstance(extension, EnvmatrixError):
        return extension.message
    known_abilities = {
        "builds images": BuildsImages,
        "has image files": HasImageFiles,
        "runs as a command": RunsAsCommand,
        "shows its scripts": ShowsScripts,
    }
    abilities = [text for text, kind in known_abilities.items() if isinstance(extension, kind)]
    abilities += ["experimental"] if getattr(extension, "experimental", False) else []
    file = getattr(extension, "file", None)
    texts = (f"of {entry.origin}" if entry.origin else "", *abilities, f"writes {file}" if file else "")
    return "; ".join(filter(None, texts))


def _environment_text(matrix: Matrix, name: str) -> str:
    entry = matrix.environments[name]
    levels = ", ".join(f"{factor}={level}" for factor, level in entry.levels.items())
    return "; ".join(part for part in (levels, entry.description) if part)


def _workload_text(entry: Workload) -> str:
    work_text = " ".join(entry.command) or ", ".join(f"{key}={value}" for key, value in entry.options.items())
    return "; ".join(part for part in (entry.description, work_text) if part)


def _design_text(entry: Design) -> str:
    from math import prod

    named_count = len({*entry.environments, *entry.cumulative}) + 1
    size = prod(map(len, entry.factors.values())) if entry.factors else named_count
    return f"{entry.description or 'no description'} ({size} environments, {len(entry.workloads)} workloads)"

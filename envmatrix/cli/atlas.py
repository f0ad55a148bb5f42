"""The ``envmatrix atlas`` command."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, one_name
from envmatrix.errors import InputError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    action = "add runs, show all of them, or say what they predict for this machine"
    parser.add_argument("action", choices=("add", "show", "advise"), metavar="add|show|advise", help=action)
    parser.add_argument("runs", nargs="*", type=one_name, metavar="RUN", help="runs to add (default: the newest)")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="the atlas to add to (default: ./atlas)")
    parser.add_argument("--from", dest="source", type=Path, metavar="FOLDER", help="the one to read (default: ./atlas)")
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples("envmatrix atlas add reference-default --to atlas", "envmatrix atlas show --from atlas")


def run(arguments: argparse.Namespace) -> int:
    """Add runs to an atlas, show what its runs have in common, or predict from them."""
    from envmatrix.api.atlas import add_to_atlas, read_atlas_folder
    from envmatrix.report.atlas_table import print_atlas

    folder = arguments.to or arguments.source or Path("atlas")
    if arguments.action == "add":
        if arguments.source:
            raise InputError("--from is for `show`", remedy=f"envmatrix atlas add RUN --to {folder}")
        added = add_to_atlas(arguments.runs, folder, results=arguments.results)
        if arguments.json:
            common.print_json([{"file": str(file), "new": is_new} for file, is_new in added])
        else:
            lines = (f"{file}: {'added' if is_new else 'already there'}" for file, is_new in added)
            common.print_text("\n".join(lines))
        return 0
    if arguments.runs or arguments.to:
        raise InputError("RUN and --to are for `add`", remedy=f"envmatrix atlas show --from {folder}")
    if arguments.action == "advise":
        return _advise(folder, as_json=arguments.json)
    atlas = read_atlas_folder(folder)
    if arguments.json:
        common.print_json(atlas.to_json())
    else:
        print_atlas(atlas, common.console())
    return 0


def _advise(folder: Path, *, as_json: bool) -> int:
    from envmatrix.api.atlas import advise
    from envmatrix.report.advice_table import print_advice

    advice = advise(folder)
    if as_json:
        common.print_json(advice.to_json())
    else:
        print_advice(advice, common.console())
    return 0

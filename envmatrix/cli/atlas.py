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
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign what is added with this SSH key")
    parser.add_argument("--from", dest="source", type=Path, metavar="FOLDER", help="the one to read (default: ./atlas)")
    parser.add_argument(
        "--signers", type=Path, metavar="FILE", help="file of allowed signers (ssh-keygen); leave out files of others"
    )
    shared.add_results(parser)
    shared.add_json(parser)
    shared.add_output(parser, "FILE", "show it as an HTML page instead")
    parser.examples(
        "envmatrix atlas add reference-default --to atlas", "envmatrix atlas show --from atlas --output atlas.html"
    )


def run(arguments: argparse.Namespace) -> int:
    """Add runs to an atlas, show what its runs have in common, or predict from them."""
    folder = arguments.to or arguments.source or Path("atlas")
    if arguments.action == "add":
        if arguments.source or arguments.signers or arguments.output:
            what = "--from, --signers and --output are for `show`"
            raise InputError(what, remedy=f"envmatrix atlas add RUN --to {folder}")
        return _add(arguments, folder)
    if arguments.runs or arguments.to or arguments.sign:
        raise InputError("RUN, --to and --sign are for `add`", remedy=f"envmatrix atlas show --from {folder}")
    return _show(arguments, folder) if arguments.action == "show" else _advise(arguments, folder)


def _add(arguments: argparse.Namespace, folder: Path) -> int:
    from envmatrix.api.atlas import add_to_atlas
    from envmatrix.results.atlas import signature_file

    added = add_to_atlas(arguments.runs, folder, results=arguments.results, key=arguments.sign)
    lines = [(str(file), is_new, signature_file(file).exists()) for file, is_new in added]
    if arguments.json:
        common.print_json([{"file": file, "new": is_new, "signed": signed} for file, is_new, signed in lines])
        return 0
    for file, is_new, signed in lines:
        common.print_text(f"{file}: {'added' if is_new else 'already there'}{', signed' if signed else ''}")
    return 0


def _show(arguments: argparse.Namespace, folder: Path) -> int:
    from envmatrix.api.atlas import read_atlas_folder
    from envmatrix.report.formats.atlas_page import to_html
    from envmatrix.report.tables.atlas import print_atlas

    atlas = read_atlas_folder(folder, signers=arguments.signers)
    if arguments.output:
        common.write_or_print(to_html(atlas), arguments.output)
        common.print_text(str(arguments.output))
    elif arguments.json:
        common.print_json(atlas.to_json())
    else:
        print_atlas(atlas, common.console())
    return 0


def _advise(arguments: argparse.Namespace, folder: Path) -> int:
    from envmatrix.api.atlas import advise
    from envmatrix.report.tables.advice import print_advice

    if arguments.output:
        raise InputError("--output is for `show`", remedy=f"envmatrix atlas advise --from {folder} --json")
    advice = advise(folder, signers=arguments.signers)
    if arguments.json:
        common.print_json(advice.to_json())
    else:
        print_advice(advice, common.console())
    return 0

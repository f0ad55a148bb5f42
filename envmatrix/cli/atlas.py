"""The ``envmatrix atlas`` command."""

from __future__ import annotations

from pathlib import Path

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, nonempty_name
from envmatrix.errors import InputError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    action = "add runs, show all of them, or say what they predict for this machine"
    declare(parser, "action", "add|show|advise", action, choices=("add", "show", "advise"))
    declare(parser, "runs", "RUN", "runs to add (default: the newest)", nonempty_name, nargs="*")
    declare(parser, "--to", "FOLDER", "the atlas to add to (default: ./atlas)", Path)
    declare(parser, "--sign", "KEY", "sign what is added with this SSH key", Path)
    declare(parser, "--from", "FOLDER", "the one to read (default: ./atlas)", Path, dest="source")
    declare(parser, "--signers", "FILE", "file of allowed signers (ssh-keygen); leave out files of others", Path)
    shared_options.add(parser, "--results", "--json")
    shared_options.add_output(parser, "FILE", "show it as an HTML page instead")
    parser.examples(
        "envmatrix atlas add reference-default --to atlas", "envmatrix atlas show --from atlas --output atlas.html"
    )


def run(arguments: Arguments) -> None:
    """Add runs to an atlas, show what its runs have in common, or predict from them."""
    folder = arguments.to or arguments.source or Path("atlas")
    if arguments.action == "add":
        if arguments.source or arguments.signers or arguments.output:
            what = "--from, --signers and --output are for `show`"
            raise InputError(what, remedy=f"envmatrix atlas add RUN --to {folder}")
        _add(arguments, folder)
    elif arguments.runs or arguments.to or arguments.sign:
        raise InputError("RUN, --to and --sign are for `add`", remedy=f"envmatrix atlas show --from {folder}")
    elif arguments.action == "show":
        _show(arguments, folder)
    else:
        _advise(arguments, folder)


def _add(arguments: Arguments, folder: Path) -> None:
    from envmatrix.api.atlas import add_to_atlas
    from envmatrix.results.atlas_entries import signature_file

    added = add_to_atlas(arguments.runs, folder, results=arguments.results, key=arguments.sign)
    entries = [(str(file), is_new, signature_file(file).exists()) for file, is_new in added]
    console_io.print_answer(
        arguments,
        [{"file": file, "new": is_new, "signed": signed} for file, is_new, signed in entries],
        "\n".join(
            f"{file}: {'added' if is_new else 'already there'}{', signed' if signed else ''}"
            for file, is_new, signed in entries
        ),
    )


def _show(arguments: Arguments, folder: Path) -> None:
    from envmatrix.api.atlas import read_atlas_folder
    from envmatrix.report.formats.atlas_page import to_html
    from envmatrix.report.tables.atlas import print_atlas

    atlas = read_atlas_folder(folder, signers=arguments.signers)
    if arguments.output:
        console_io.write_or_print(to_html(atlas), arguments.output)
        console_io.print_text(str(arguments.output))
    elif arguments.json:
        console_io.print_json(atlas.to_json())
    else:
        print_atlas(atlas, console_io.stdout_console())


def _advise(arguments: Arguments, folder: Path) -> None:
    from envmatrix.api.atlas import advise
    from envmatrix.report.tables.atlas import print_advice

    if arguments.output:
        raise InputError("--output is for `show`", remedy=f"envmatrix atlas advise --from {folder} --json")
    advice = advise(folder, signers=arguments.signers)
    if arguments.json:
        console_io.print_json(advice.to_json())
    else:
        print_advice(advice, console_io.stdout_console())

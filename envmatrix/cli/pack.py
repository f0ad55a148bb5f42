"""The ``envmatrix pack`` command."""

from __future__ import annotations

from pathlib import Path

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, declare_flag, size


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "run")
    shared_options.add_output(parser, "FILE", "the archive (default: RUN.tar.gz)")
    declare_flag(parser, "--images", "include the image files (SIF); they are large")
    declare_flag(parser, "--libraries", "include the libraries that environments preload")
    text = "include the run's own programs up to this size (default: 64MiB; none: leave them out)"
    declare(parser, "--programs", "SIZE", text, size, default="64MiB")
    declare(parser, "--sign", "KEY", "sign with this SSH key", Path)
    shared_options.add(parser, "--matrix", "--results", "--json")
    parser.examples(
        "envmatrix pack reference-default", "envmatrix pack --images --sign ~/.ssh/id_ed25519 --output run.tar.gz"
    )


def run(arguments: Arguments) -> None:
    """Write an archive with everything needed to repeat a run elsewhere."""
    from envmatrix.api.reproduction_packs import pack_run
    from envmatrix.runner.reproduction.pack_archive import manifest_summary

    packed = console_io.call(pack_run, arguments, key=arguments.sign)
    summary = {"archive": str(packed.archive), "sha256": packed.sha256, "signed": packed.signed}
    files = f"{len(packed.manifest.files)} files, {packed.size / 1e6:.1f} MB"
    text = f"{packed.archive}  ({files})\nsha256 {packed.sha256}"
    console_io.print_answer(arguments, {**summary, **manifest_summary(packed.manifest)}, text)

"""The ``envmatrix pack`` command."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, size


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    shared.add_output(parser, "FILE", "the archive (default: RUN.tar.gz)")
    parser.add_argument("--images", action="store_true", help="include the image files (SIF); they are large")
    parser.add_argument("--libraries", action="store_true", help="include the libraries that environments preload")
    parser.add_argument(
        "--programs",
        type=size,
        default="64MiB",
        metavar="SIZE",
        help="include the run's own programs up to this size (default: 64MiB; none: leave them out)",
    )
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign with this SSH key")
    shared.add_matrix(parser)
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples(
        "envmatrix pack reference-default", "envmatrix pack --images --sign ~/.ssh/id_ed25519 --output run.tar.gz"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write an archive with everything needed to repeat a run elsewhere."""
    from envmatrix.api.packs import pack_run
    from envmatrix.runner.pack_manifest import manifest_summary

    packed = pack_run(
        arguments.run_name,
        output=arguments.output,
        images=arguments.images,
        libraries=arguments.libraries,
        programs=arguments.programs,
        key=arguments.sign,
        matrix=arguments.matrix,
        results=arguments.results,
        progress=common.print_progress,
    )
    summary = {"archive": str(packed.archive), "sha256": packed.sha256, "signed": packed.signed}
    if arguments.json:
        common.print_json({**summary, **manifest_summary(packed.manifest)})
    else:
        files, size = len(packed.manifest.files), packed.size / 1e6
        common.print_text(f"{packed.archive}  ({files} files, {size:.1f} MB)\nsha256 {packed.sha256}")
    return 0

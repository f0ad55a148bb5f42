"""``envmatrix pack``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    shared.add_output(parser, "FILE", "the archive (default: RUN.tar.gz)")
    parser.add_argument("--images", action="store_true", help="with the image files (SIF); they are large")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign with this SSH key")
    shared.add_matrix(parser)
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples(
        "envmatrix pack reference-default", "envmatrix pack --images --sign ~/.ssh/id_ed25519 --output run.tar.gz"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write one archive with everything that is needed to repeat a run elsewhere."""
    from envmatrix.engines.base import HasBills, HasImageFiles
    from envmatrix.engines.catalog import find_engine
    from envmatrix.images.cache import file_digest
    from envmatrix.pack.archive import write_archive
    from envmatrix.pack.contents import bills, collect, make_manifest
    from envmatrix.pack.images import image_files, packed_images
    from envmatrix.pack.manifest import summary_of
    from envmatrix.pack.signature import sign
    from envmatrix.trials.experiment import kept_bench, reopen

    folder = common.find_run(arguments.results, arguments.run_name)
    matrix = common.matrix_path(arguments)
    packed = folder.load()
    contents = collect(folder, packed, matrix, kept_bench(packed.bench_digest))
    images: dict[str, Path] = {}
    if any(isinstance(find_engine(arm.engine), (HasBills, HasImageFiles)) for arm in packed.plan.arms):
        experiment = reopen(folder, matrix, common.say_to_stderr)
        images = image_files(experiment.engines, experiment.prepared)
        contents |= bills(experiment)
        contents |= packed_images(experiment.engines, experiment.prepared) if arguments.images else {}
    if arguments.images and not images:
        common.say_to_stderr("no image of this run is a file: none was packed")
    manifest = make_manifest(packed, contents, images)
    signature = sign(manifest.text(), arguments.sign) if arguments.sign else None
    archive: Path = arguments.output or Path(f"{packed.name}.tar.gz")
    write_archive(archive, manifest, contents, signature)
    digest = file_digest(archive)
    if arguments.json:
        common.print_json(
            {"archive": str(archive), "sha256": digest, "signed": bool(signature), **summary_of(manifest)}
        )
    else:
        size = archive.stat().st_size / 1e6
        common.print_text(f"{archive}  ({len(manifest.files)} files, {size:.1f} MB)\nsha256 {digest}")
    return 0

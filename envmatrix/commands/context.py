"""``envmatrix context``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_environment(parser)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    shared.add_matrix(parser)
    parser.examples("envmatrix context intel-omp build/context")


def run(arguments: argparse.Namespace) -> int:
    """Fetch and check all that an environment's image is made of, for a build by hand with the network off."""
    from envmatrix.api.places import load_matrix
    from envmatrix.engines.base_images import bootstrapped_base
    from envmatrix.errors import InputError
    from envmatrix.images.archive import docker_archive, rooted
    from envmatrix.images.context import gather, write_context
    from envmatrix.plan.environment import all_libraries, resolve
    from envmatrix.trials.experiment import places_of, snapshot_bench

    matrix = load_matrix(arguments.matrix)
    environment = resolve(matrix, arguments.environment, {})
    places = places_of(Path(matrix.path), snapshot_bench()[1])
    folder: Path = arguments.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not an empty folder", remedy="name a new one, or remove what is in it")
    base, tar = bootstrapped_base(environment.image, places, common.say_to_stderr)
    made = gather(places, environment.image, all_libraries(matrix), base, common.say_to_stderr)
    write_context(made, places.bench, folder)
    archive = folder.with_name(f"{folder.name}-base.tar")
    with places.cache.scratch("context") as scratch:
        rooted(tar, scratch / "base.tar")  # so that an ordinary user without a range of users can build from it
        docker_archive(scratch / "base.tar", archive, base.reference)
    common.print_text(f"{folder}: the context; {archive}: a base for where no registry can be reached ({base.choice})")
    return 0

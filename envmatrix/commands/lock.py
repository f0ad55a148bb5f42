"""``envmatrix lock``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser, one_name

if TYPE_CHECKING:
    from envmatrix.images.locks import Locks
    from envmatrix.images.places import Places
    from envmatrix.plan.environment import Image


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("environments", nargs="*", type=one_name, metavar="ENV", help="whose images (default: all)")
    shared.add_matrix(parser)
    parser.add_argument(
        "--engine", type=one_name, metavar="NAME", help="pin the system packages of this engine's images instead"
    )
    parser.examples("envmatrix lock", "envmatrix lock tcmalloc jemalloc --engine docker")


def run(arguments: argparse.Namespace) -> int:
    """Resolve images and libraries with the host's own pip and apt, and write containers/locks/."""
    from envmatrix.api.places import load_matrix
    from envmatrix.images.locks import Locks
    from envmatrix.plan.environment import all_libraries, images_of, resolve
    from envmatrix.trials.experiment import places_of, snapshot_bench

    matrix = load_matrix(arguments.matrix)
    places = places_of(Path(matrix.path), snapshot_bench()[1])
    locks = Locks(places.locks, places.cache)
    chosen = images_of(matrix)
    if arguments.environments:
        named = [resolve(matrix, name, {}).image for name in arguments.environments]
        chosen = {image.name: image for image in named}
    images = tuple(chosen.values())
    if arguments.engine:
        written = [_pin_system(arguments.engine, image, places, locks) for image in images if not image.interpreter]
    else:
        written = locks.make(images, all_libraries(matrix), common.say_to_stderr)
    for path in dict.fromkeys(written):
        common.print_text(str(path))
    return 0


def _pin_system(name: str, image: Image, places: Places, locks: Locks) -> Path:
    """Pin what an image adds to the base that this engine starts it from."""
    from envmatrix.engines.base import BuildsImages
    from envmatrix.engines.catalog import find_engine
    from envmatrix.errors import InputError
    from envmatrix.images.context import system_packages
    from envmatrix.images.suites import Suite

    engine = find_engine(name, places)
    if not isinstance(engine, BuildsImages):
        raise InputError(
            f"engine {name!r} has no images of its own", remedy="`envmatrix list engines` says which build images"
        )
    say = common.say_to_stderr
    base = engine.base(image, say)
    suite = Suite(base.suite, places.cache)
    packages = system_packages(image, suite)
    pins = suite.closure(packages, base.status)
    return locks.pin_system(suite.distribution, packages, base.choice, pins, say)

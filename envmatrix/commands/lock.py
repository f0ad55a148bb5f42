"""``envmatrix lock``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    common.add_matrix(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resolve every image and library with the host's own pip and apt, and write containers/locks/."""
    from envmatrix.environment import all_libraries, images_of
    from envmatrix.images.cache import Cache
    from envmatrix.images.locks import Locks
    from envmatrix.project import cache_folder

    matrix = common.load_matrix(arguments)
    folder = Path(matrix.path).resolve().parent / "containers" / "locks"
    locks = Locks(folder, Cache(cache_folder()))
    for path in locks.make(tuple(images_of(matrix).values()), all_libraries(matrix), common.say_to_stderr):
        common.print_text(str(path))
    return 0

"""``envmatrix build``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser, one_name
from envmatrix.errors import ExitCode, InputError

if TYPE_CHECKING:
    from envmatrix.engines.base import BuildsImages
    from envmatrix.matrix import Design, Matrix
    from envmatrix.plan.environment import Environment

#: Before a word that names a design and an environment.
_DESIGN = "design:"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names",
        nargs="*",
        type=one_name,
        metavar="NAME",
        help="a design, or environments; design:NAME where an environment has that name too (default: default)",
    )
    parser.formerly("--design", "the design as a word of its own: `envmatrix build DESIGN`")
    shared.add_matrix(parser)
    shared.add_engine(parser)
    parser.examples("envmatrix build quick", "envmatrix build tcmalloc intel-omp --engine apptainer")


def run(arguments: argparse.Namespace) -> int:
    """Build what is missing and say where it is."""
    from pathlib import Path

    from envmatrix.api.places import load_matrix
    from envmatrix.engines.base import BuildsImages
    from envmatrix.engines.catalog import AUTO, choose_engine
    from envmatrix.host import this_host
    from envmatrix.plan.environment import all_libraries, resolve
    from envmatrix.trials.experiment import (
        design_environments,
        open_engines,
        places_of,
        prepare_images,
        snapshot_bench,
    )

    matrix = load_matrix(arguments.matrix)
    facts = this_host().facts()
    design = _design(matrix, arguments.names)
    if design:
        chosen = design_environments(matrix, design, facts)
    else:
        chosen = {name: resolve(matrix, name, facts) for name in arguments.names}
    places = places_of(Path(matrix.path), snapshot_bench()[1])
    name = choose_engine(common.say_to_stderr) if arguments.engine == AUTO else arguments.engine
    engines = open_engines([name], places)
    if not design and isinstance(engine := engines[name], BuildsImages):
        return _build_named(matrix, list(chosen.values()), engine)
    ready, missing = prepare_images(chosen, engines, all_libraries(matrix), common.say_to_stderr)
    for (image, _), prepared in ready.items():
        common.print_text(f"{image}@{name}: {prepared.reference}")
    for (environment, _), reason in missing.items():
        common.say_to_stderr(f"not built: {environment}@{name}: {reason}")
    if not ready:
        return ExitCode.NOTHING_RAN
    return ExitCode.SOME_FAILED if missing else ExitCode.FINE


def _design(matrix: Matrix, names: list[str]) -> Design | None:
    """Return the design that is meant, or None: the names are environments."""
    from envmatrix.trials.experiment import find_design

    designs = [name for name in names or ["default"] if _names_design(matrix, name)]
    if not designs:
        return None
    if len(names) > 1:
        raise InputError(
            f"{designs[0]!r} is a design, and {len(names)} names are given",
            remedy="build one design at a time, or name environments alone",
        )
    return find_design(matrix, designs[0].removeprefix(_DESIGN))


def _names_design(matrix: Matrix, name: str) -> bool:
    if name not in matrix.environments:
        return name.startswith(_DESIGN) or name in matrix.designs
    if name in matrix.designs:
        common.say_to_stderr(f"{name} is an environment and a design; for the design: `envmatrix build design:{name}`")
    return False


def _build_named(matrix: Matrix, environments: list[Environment], engine: BuildsImages) -> int:
    """Build the stand-alone image of each environment; files and bills of material lie in containers/."""
    from pathlib import Path

    from envmatrix.plan.environment import all_libraries

    folder = Path(matrix.path).resolve().parent / "containers"
    for environment in environments:
        image = engine.build_named(environment, all_libraries(matrix), folder, common.say_to_stderr)
        common.print_text(image.start)
    return ExitCode.FINE

"""``envmatrix build``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from envmatrix.commands import common
from envmatrix.errors import ExitCode

if TYPE_CHECKING:
    from envmatrix.engines.base import Engine
    from envmatrix.matrix import Matrix
    from envmatrix.plan.environment import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("environments", nargs="*", metavar="ENV", help="named environments (default: the design's)")
    parser.add_argument("--design", default="default", metavar="NAME", help="whose environments (default: default)")
    common.add_matrix(parser)
    common.add_engine(parser, "local")


def run(arguments: argparse.Namespace) -> int:
    """Build what is missing and say where it is."""
    from pathlib import Path

    from envmatrix.engines.catalog import choose_engine
    from envmatrix.host import this_host
    from envmatrix.plan.environment import all_libraries, resolve
    from envmatrix.trials.experiment import (
        design_environments,
        find_design,
        open_engines,
        places_of,
        prepare_images,
        snapshot_bench,
    )

    matrix = common.load_matrix(arguments)
    facts = this_host().facts()
    if arguments.environments:
        chosen = {name: resolve(matrix, name, facts) for name in arguments.environments}
    else:
        chosen = design_environments(matrix, find_design(matrix, arguments.design), facts)
    places = places_of(Path(matrix.path), snapshot_bench()[1])
    name = choose_engine(common.say_to_stderr) if arguments.engine == "auto" else arguments.engine
    engines = open_engines([name], places)
    if arguments.environments and name in ("docker", "apptainer"):
        return _build_named(matrix, list(chosen.values()), engines[name])
    ready, missing = prepare_images(chosen, engines, all_libraries(matrix), common.say_to_stderr)
    for (image, engine), prepared in ready.items():
        common.print_text(f"{image}@{engine}: {prepared.reference}")
    for (name, engine), reason in missing.items():
        common.say_to_stderr(f"not built: {name}@{engine}: {reason}")
    if not ready:
        return ExitCode.NOTHING_RAN
    return ExitCode.SOME_FAILED if missing else ExitCode.FINE


def _build_named(matrix: Matrix, environments: list[Environment], engine: Engine) -> int:
    """Build the stand-alone image of each environment: a tag for Docker, a SIF in containers/ for Apptainer.

    Its bill of materials lies in containers/ too.
    """
    from pathlib import Path

    from envmatrix.engines.apptainer import ApptainerEngine
    from envmatrix.engines.docker import DockerEngine
    from envmatrix.plan.environment import all_libraries

    say, libraries = common.say_to_stderr, all_libraries(matrix)
    folder = Path(matrix.path).resolve().parent / "containers"
    for environment in environments:
        if isinstance(engine, ApptainerEngine):
            target = folder / f"{environment.name}.sif"
            engine.build_named(environment, libraries, target, say)
            common.print_text(f"apptainer run {target}")
        elif isinstance(engine, DockerEngine):
            tag = engine.build_named(environment, libraries, folder, say)
            common.print_text(f"docker run --rm {tag}")
    return ExitCode.FINE

"""Generate a commented batch script for the user's own training in an environment (templates/training.sh.j2)."""

from __future__ import annotations

import re
from pathlib import Path

from envmatrix.build.images.definitions import text_templates
from envmatrix.engines.base import Engine, HasImageFiles, Prepared, RunsAsCommand
from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Environment
from envmatrix.plan.export_lines import (
    all_variables,
    cached_libraries_note,
    placement,
    posix_quote,
    program_command,
    quota_note,
)

#: Variables that every job sets itself.
_OF_A_JOB = frozenset({"PATH", "HOME", "USER", "LANG"})


def training_script(
    environment: Environment,
    engine: Engine,
    prepared: Prepared,
    preload: tuple[str, ...],
    form: str,
    program: Workload | None = None,
) -> str:
    """Return the script; ``form`` is 'slurm' (as the engine starts it) or 'pyxis' (srun --container-image).

    ``program`` is the program that a run measured in the environment. Raises InputError for an engine without a
    command, and for 'pyxis' if the engine has no image file.
    """
    variables = {**(program.env if program else {}), **all_variables(environment, preload)}
    image: Path | None = None
    engine_lines: list[str] = []
    if form == "pyxis":
        image = _image_file(environment, engine, prepared)
    elif isinstance(engine, RunsAsCommand):
        # Engines from other packages may not accept a program.
        more = {"program": program.command} if program and program.command else {}
        engine_lines = engine.script_lines(prepared, variables, placement(environment), **more)
    else:
        raise InputError(
            f"engine {engine.name} needs its own service on every node, so no batch script can start it",
            remedy="use `--engine apptainer`, or the venv: `--engine local`",
        )
    return text_templates("envmatrix.launchers.slurm").get_template("training.sh.j2").render(
        environment=environment,
        job=re.sub(r"[^\w.-]", "-", environment.name),
        notes=[*quota_note(environment), *cached_libraries_note(environment, preload)],
        program=program,
        needs=[name for name in program.pass_env if name not in _OF_A_JOB] if program else (),
        python=prepared.python,
        engine_lines=engine_lines,
        image=image,
        variables=variables,
        placement=placement(environment),
        quote=posix_quote,
        command_line=program_command,
    )  # fmt: skip


def _image_file(environment: Environment, engine: Engine, prepared: Prepared) -> Path:
    if isinstance(engine, HasImageFiles):
        return engine.image_file(prepared)
    raise InputError(
        f"environment {environment.name} is no image file on engine {engine.name}, so Pyxis cannot start it",
        remedy="use `--engine apptainer`, whose image Enroot reads",
    )

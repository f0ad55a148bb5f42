"""Generate a commented batch script for the user's own training in an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from envmatrix.engines.base import Engine, HasImageFiles, Prepared, RunsAsCommand
from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Environment
from envmatrix.plan.export_lines import all_variables, cache_note, placement, posix_quote, program_command, quota_note

#: Variables that every job sets itself.
_OF_A_JOB = frozenset({"PATH", "HOME", "USER", "LANG"})
_HEAD = """\
#!/bin/sh
# A training job in the environment {name} ({levels}).
# Change what is marked with <...>, then submit it: sbatch FILE
#SBATCH --job-name={job}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive                 # thread counts and placement below are for a whole node
#SBATCH --time=04:00:00             # <how long it may take>
##SBATCH --partition=<partition>    # take one # away to use a line
##SBATCH --account=<account>
##SBATCH --gres=gpu:<how many>
#SBATCH --output=train-%j.log
"""


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
    job = "train-" + "".join(c if c.isalnum() or c in "-_." else "-" for c in environment.name)
    variables = {**(program.env if program else {}), **all_variables(environment, preload)}
    command = program.command if program else ()
    head = _HEAD.format(name=environment.name, levels=environment.levels_text(), job=job)
    if form == "pyxis":
        body = _pyxis(environment, _image_file(environment, engine, prepared), prepared.python, variables, command)
    elif isinstance(engine, RunsAsCommand):
        more = {"program": command} if command else {}  # engines from other packages may not accept it
        body = engine.script_lines(prepared, variables, placement(environment), **more)
    else:
        raise InputError(
            f"engine {engine.name} needs its own service on every node, so no batch script can start it",
            remedy="use `--engine apptainer`, or the venv: `--engine local`",
        )
    notes = [*quota_note(environment), *cache_note(environment, preload)]
    return head + "\n".join(["set -eu", *notes, *_around(program, prepared.python), *body]) + "\n"


def _around(program: Workload | None, python: str) -> list[str]:
    """Return the lines before a user's own program: its folder, its variables, its preparation command."""
    if program is None:
        return []
    needs = [name for name in program.pass_env if name not in _OF_A_JOB]
    return [
        *([f"# It needs these variables of the shell that submits: {', '.join(needs)}"] if needs else []),
        *([f"cd {posix_quote(program.files)}  # the folder of the program"] if program.files else []),
        *([program_command(python, program.prepare)] if program.prepare else []),
    ]


def _image_file(environment: Environment, engine: Engine, prepared: Prepared) -> Path:
    if isinstance(engine, HasImageFiles):
        return engine.image_file(prepared)
    raise InputError(
        f"environment {environment.name} is no image file on engine {engine.name}, so Pyxis cannot start it",
        remedy="use `--engine apptainer`, whose image Enroot reads",
    )


def _pyxis(
    environment: Environment, file: Path, python: str, variables: Mapping[str, str | None], program: Sequence[str]
) -> list[str]:
    take_out = [
        "# For clusters with Pyxis and Enroot. Enroot reads a squashfs file: take it out of the SIF once, where",
        "# Apptainer is. `sif list` shows the number of its FS (squashfs) partition, which `sif dump` takes.",
        f"#   apptainer sif list {posix_quote(str(file))}",
        f"#   apptainer sif dump 4 {posix_quote(str(file))} >image.sqsh",
        "image=$PWD/image.sqsh",
    ]
    is_squashfs = [
        "# For clusters with Pyxis and Enroot. Copy the image to where the nodes see it, and change this line.",
        f"image={posix_quote(str(file))}",
    ]
    return [
        *(is_squashfs if file.suffix == ".sqsh" else take_out),
        'exec srun --container-image="$image" --container-mounts="$PWD:$PWD" --container-workdir="$PWD" \\',
        f"  --no-container-mount-home --container-readonly {placement(environment)}/usr/bin/env \\",
        *(f"  -u {name} \\" for name, value in variables.items() if value is None),
        *(f"  {posix_quote(f'{name}={value}')} \\" for name, value in variables.items() if value is not None),
        f"  {program_command(python, program)}",
    ]

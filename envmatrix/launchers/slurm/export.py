"""A commented batch script for the user's own training in an environment: text in, text out."""

from __future__ import annotations

from pathlib import Path

from envmatrix.engines.base import Prepared
from envmatrix.errors import InputError
from envmatrix.launchers.slurm.script import quoted
from envmatrix.plan.environment import Environment
from envmatrix.plan.export import placement, variables_of

_HEAD = """\
#!/bin/sh
# A training job in the environment {name} ({levels}).
# Change what is marked with <...>, then: sbatch train.sh
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
    environment: Environment, prepared: Prepared, preload: tuple[str, ...], form: str, *, userns: bool = False
) -> str:
    """Return the script; ``form`` is 'slurm' (apptainer, or the venv itself) or 'pyxis' (srun --container-image).

    ``userns``: Apptainer needs a user namespace, as it does for a root without all capabilities.
    Raises InputError for 'pyxis' on an environment that is no image file.
    """
    job = "train-" + "".join(c if c.isalnum() or c in "-_." else "-" for c in environment.name)
    variables = variables_of(environment, preload)
    if form == "pyxis":
        body = _pyxis(environment, prepared, variables)
    else:
        body = _plain(environment, prepared, variables, "exec --userns" if userns else "exec")
    head = _HEAD.format(name=environment.name, levels=environment.levels_text(), job=job)
    return head + "\n".join(["set -eu", *body]) + "\n"


def _is_image(prepared: Prepared) -> bool:
    return Path(prepared.reference).suffix in (".sif", ".sqsh")


def _plain(environment: Environment, prepared: Prepared, variables: dict[str, str | None], verb: str) -> list[str]:
    if not _is_image(prepared):
        lines = ["# The environment is a venv; it must lie on a file system that the node sees."]
        lines += [f"unset {name}" for name, value in variables.items() if value is None]
        lines += [f"export {n}={quoted(v)}" for n, v in variables.items() if v is not None and n != "LD_PRELOAD"]
        loaded = variables.get("LD_PRELOAD")
        start = f"env LD_PRELOAD={quoted(loaded)} " if loaded else ""
        return [*lines, f"exec {placement(environment)}{start}{quoted(prepared.python)} train.py  # <your program>"]
    lines = [
        "# The image; copy it to a file system that the nodes see, and change this line.",
        f"image={quoted(prepared.reference)}",
        "# --cleanenv: only what is set here gets in. --nv: gives the container this node's GPUs.",
        f'exec {placement(environment)}apptainer {verb} --cleanenv --bind "$PWD" --pwd "$PWD" \\',
        "  $(command -v nvidia-smi >/dev/null && echo --nv) \\",
        '  "$image" /usr/bin/env \\',
    ]
    lines += [f"  -u {name} \\" for name, value in variables.items() if value is None]
    lines += [f"  {quoted(f'{name}={value}')} \\" for name, value in variables.items() if value is not None]
    return [*lines, f"  {quoted(prepared.python)} train.py  # <your program>"]


def _pyxis(environment: Environment, prepared: Prepared, variables: dict[str, str | None]) -> list[str]:
    if not _is_image(prepared):
        raise InputError(
            f"environment {environment.name} is a venv on engine {prepared.engine}, which Pyxis cannot start",
            remedy="use `--engine apptainer`, whose image Enroot reads",
        )
    lines = [
        "# For clusters with Pyxis and Enroot. Enroot reads a squashfs file: take it out of the SIF once, where",
        "# Apptainer is. `sif list` shows the number of its FS (squashfs) partition, which `sif dump` takes.",
        f"#   apptainer sif list {quoted(prepared.reference)}",
        f"#   apptainer sif dump 4 {quoted(prepared.reference)} >image.sqsh",
        "image=$PWD/image.sqsh",
        'exec srun --container-image="$image" --container-mounts="$PWD:$PWD" --container-workdir="$PWD" \\',
        f"  --no-container-mount-home --container-readonly {placement(environment)}/usr/bin/env \\",
    ]
    lines += [f"  -u {name} \\" for name, value in variables.items() if value is None]
    lines += [f"  {quoted(f'{name}={value}')} \\" for name, value in variables.items() if value is not None]
    return [*lines, f"  {quoted(prepared.python)} train.py  # <your program>"]

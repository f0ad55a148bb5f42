"""Slurm options of a design: values that are safe in a batch script and do not override its own lines."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from envmatrix.matrix.types import AS_SCALAR, AS_WORDS, Bytes, Frozen, Percent, Seconds, word_as_list

_WORD = re.compile(r"[A-Za-z0-9_.:,=+*&|\[\]()@/!~-]+\Z")
#: sbatch options that envmatrix sets in the script of a block.
_RESERVED_OPTIONS = {
    "--array",
    "--chdir",
    "--error",
    "--exclude",
    "--exclusive",
    "--export",
    "--job-name",
    "--mem",
    "--nodelist",
    "--nodes",
    "--no-requeue",
    "--ntasks",
    "--open-mode",
    "--output",
    "--overcommit",
    "--parsable",
    "--requeue",
    "--wait",
    "--wrap",
}


def _check_slurm_word(value: str) -> str:
    if not _WORD.match(value) or value.startswith("-"):
        msg = f"{value!r} contains a character that an #SBATCH line cannot contain"
        raise ValueError(msg)
    return value


def _check_slurm_option(value: str) -> str:
    if not value.startswith("--") or not _WORD.match(value):
        msg = f"{value!r} is not an sbatch option of the form --name=value"
        raise ValueError(msg)
    if value.partition("=")[0] in _RESERVED_OPTIONS:
        msg = f"{value.partition('=')[0]} is set by envmatrix"
        raise ValueError(msg)
    return value


SlurmWord = Annotated[str, AfterValidator(_check_slurm_word), AS_SCALAR]
SlurmWords = Annotated[tuple[SlurmWord, ...], BeforeValidator(word_as_list), AS_WORDS]
SlurmOptions = Annotated[
    tuple[Annotated[str, AfterValidator(_check_slurm_option)], ...], BeforeValidator(word_as_list), AS_WORDS
]


class Slurm(Frozen):
    """Slurm options of a design (launcher ``slurm``); command-line options override them."""

    nodes: int = Field(1, ge=1, le=1000, description="number of nodes that work in parallel, each on its own block")
    partition: SlurmWord | None = Field(None, description="partition; default: the cluster's default")
    account: SlurmWord | None = Field(None, description="account to charge")
    constraint: SlurmWord | None = Field(None, description="node features, so that all nodes have the same hardware")
    nodelist: SlurmWords = Field((), description="nodes by name; blocks are distributed over them in turn")
    time: Seconds | None = Field(None, description="time limit of one block; default: the total limit of its trials")
    memory: Bytes | None = Field(None, description="memory of one block's job; default: the whole node")
    gpus: SlurmWord | None = Field(None, description="GPUs per node, such as 2 or a100:2")
    modules: SlurmWords = Field((), description="modules to load first, so that apptainer is found")
    busy: Percent | None = Field(
        None,
        description="repeat a block when other programs use more than this share of the node's CPUs; "
        "default: report it",
    )
    options: SlurmOptions = Field((), description="additional sbatch options, such as --qos=high")

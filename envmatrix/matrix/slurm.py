"""What a design asks of Slurm: words that can stand in a batch script, and none that its own lines depend on."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from envmatrix.matrix.types import AS_SCALAR, AS_WORDS, Bytes, Frozen, Percent, Seconds, word_as_list

_WORD = re.compile(r"[A-Za-z0-9_.:,=+*&|\[\]()@/!~-]+\Z")
#: sbatch options that a block's script depends on.
_RESERVED_OPTIONS = {
    "--array", "--chdir", "--error", "--exclude", "--exclusive", "--export", "--job-name", "--mem", "--nodelist",
    "--nodes", "--no-requeue", "--ntasks", "--open-mode", "--output", "--overcommit", "--parsable", "--requeue",
    "--wait", "--wrap",
}  # fmt: skip


def _check_slurm_word(value: str) -> str:
    if not _WORD.match(value) or value.startswith("-"):
        msg = f"{value!r} holds a character that cannot stand in an #SBATCH line"
        raise ValueError(msg)
    return value


def _check_slurm_option(value: str) -> str:
    if not value.startswith("--") or not _WORD.match(value):
        msg = f"{value!r} is no sbatch option of the form --name=value"
        raise ValueError(msg)
    if value.partition("=")[0] in _RESERVED_OPTIONS:
        msg = f"{value.partition('=')[0]} is set by envmatrix itself"
        raise ValueError(msg)
    return value


SlurmWord = Annotated[str, AfterValidator(_check_slurm_word), AS_SCALAR]
SlurmWords = Annotated[tuple[SlurmWord, ...], BeforeValidator(word_as_list), AS_WORDS]
SlurmOptions = Annotated[
    tuple[Annotated[str, AfterValidator(_check_slurm_option)], ...], BeforeValidator(word_as_list), AS_WORDS
]


class Slurm(Frozen):
    """What a design asks of Slurm (launcher ``slurm``); the command line lays over it."""

    nodes: int = Field(1, ge=1, le=1000, description="how many nodes work at once, each on a block of its own")
    partition: SlurmWord | None = Field(None, description="partition; none: the cluster's default")
    account: SlurmWord | None = Field(None, description="account to charge")
    constraint: SlurmWord | None = Field(None, description="node features, so that all nodes are of one kind")
    nodelist: SlurmWords = Field((), description="nodes by name; blocks go round them")
    time: Seconds | None = Field(None, description="time limit of one block; none: what its trials may take")
    memory: Bytes | None = Field(None, description="memory of one block's job; none: all of the node")
    gpus: SlurmWord | None = Field(None, description="GPUs of a node, such as 2 or a100:2")
    modules: SlurmWords = Field((), description="modules to load first, so that apptainer is found")
    busy: Percent | None = Field(
        None, description="hand a block back when others use more than this of the node's CPUs; none: tell it"
    )
    options: SlurmOptions = Field((), description="further sbatch options, such as --qos=high")

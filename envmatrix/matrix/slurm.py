"""Slurm options of a design: values that are safe in a batch script and do not override its own lines."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from envmatrix.matrix.types import AS_SCALAR, AS_WORDS, Bytes, Frozen, Percent, Seconds, word_as_list

_WORD = re.compile(r"[A-Za-z0-9_.:,=+*&|\[\]()@/!~-]+\Z")
#: sbatch options that envmatrix sets in the script of a block.
_RESERVED_OPTIONS = {
    "--array", "--chdir", "--comment", "--error", "--exclude", "--exclusive", "--export", "--job-name", "--mem",
    "--nodelist", "--nodes", "--ntasks", "--open-mode", "--output", "--overcommit", "--parsable", "--wait", "--wrap",
}  # fmt: skip


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


#: Options of srun that a level may set, with their values (srun(1), without words that only print).
_CPUS, _MASKS = r"\d+(,\d+)*", r"0x[0-9a-fA-F]+(,0x[0-9a-fA-F]+)*"
_SRUN_OPTIONS = {
    "--cpu-bind": rf"none|rank|sockets|cores|threads|ldoms|rank_ldom|map_(cpu|ldom):{_CPUS}|mask_(cpu|ldom):{_MASKS}",
    "--cpus-per-task": r"[1-9]\d{0,4}",
    "--gpu-bind": rf"none|closest|(single|per_task):[1-9]\d{{0,2}}|map_gpu:{_CPUS}|mask_gpu:{_MASKS}",
    "--mem-bind": rf"none|rank|local|map_mem:{_CPUS}|mask_mem:{_MASKS}",
}


def _check_srun_option(value: str) -> str:
    name, _, text = value.partition("=")
    if name not in _SRUN_OPTIONS:
        msg = f"{value!r} is not one of srun's options {', '.join(_SRUN_OPTIONS)}, in the form --name=value"
        raise ValueError(msg)
    if not re.fullmatch(_SRUN_OPTIONS[name], text):
        msg = f"{text!r} is no value of srun's {name} (see `man srun`), such as --cpu-bind=cores or --mem-bind=local"
        raise ValueError(msg)
    return value


def _check_srun_names(values: tuple[str, ...]) -> tuple[str, ...]:
    names = [value.partition("=")[0] for value in values]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        msg = f"{twice} is there twice"
        raise ValueError(msg)
    return values


SrunOptions = Annotated[
    tuple[Annotated[str, AfterValidator(_check_srun_option)], ...],
    AfterValidator(_check_srun_names),
    BeforeValidator(word_as_list),
    AS_WORDS,
]
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

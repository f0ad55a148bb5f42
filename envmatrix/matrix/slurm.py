"""Slurm options of a design: values that are safe in a batch script and do not override its own lines."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from envmatrix.matrix.types import AS_SCALAR, Bytes, Frozen, ListOf, Percent, Seconds, check_match, matching

_WORD = r"[A-Za-z0-9_.:,=+*&|\[\]()@/!~-]+"
#: sbatch options that envmatrix sets in the script of a block.
_RESERVED_OPTIONS = {
    "--array", "--chdir", "--comment", "--error", "--exclude", "--exclusive", "--export", "--job-name", "--mem",
    "--nodelist", "--nodes", "--ntasks", "--open-mode", "--output", "--overcommit", "--parsable", "--wait", "--wrap",
}  # fmt: skip


def _check_slurm_option(value: str) -> str:
    check_match(rf"(?=--){_WORD}", value, "is not an sbatch option of the form --name=value")
    if value.partition("=")[0] in _RESERVED_OPTIONS:
        raise ValueError(f"{value.partition('=')[0]} is set by envmatrix")
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
        raise ValueError(f"{value!r} is not one of srun's options {', '.join(_SRUN_OPTIONS)}, in the form --name=value")
    example = "such as --cpu-bind=cores or --mem-bind=local"
    check_match(_SRUN_OPTIONS[name], text, f"is no value of srun's {name} (see `man srun`), {example}")
    return value


def _check_srun_names(values: tuple[str, ...]) -> tuple[str, ...]:
    names = [value.partition("=")[0] for value in values]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"{twice} is there twice")
    return values


SrunOptions = Annotated[ListOf[Annotated[str, AfterValidator(_check_srun_option)]], AfterValidator(_check_srun_names)]
SlurmWord = Annotated[
    str, matching(f"(?!-){_WORD}", "contains a character that an #SBATCH line cannot contain"), AS_SCALAR
]


class Slurm(Frozen):
    """Slurm options of a design (launcher ``slurm``); command-line options override them."""

    nodes: int = Field(1, ge=1, le=1000, description="number of nodes that work in parallel, each on its own block")
    partition: SlurmWord | None = Field(None, description="partition; default: the cluster's default")
    account: SlurmWord | None = Field(None, description="account to charge")
    constraint: SlurmWord | None = Field(None, description="node features, so that all nodes have the same hardware")
    nodelist: ListOf[SlurmWord] = Field((), description="nodes by name; blocks are distributed over them in turn")
    time: Seconds | None = Field(None, description="time limit of one block; default: the total limit of its trials")
    memory: Bytes | None = Field(None, description="memory of one block's job; default: the whole node")
    gpus: SlurmWord | None = Field(None, description="GPUs per node, such as 2 or a100:2")
    modules: ListOf[SlurmWord] = Field((), description="modules to load first, so that apptainer is found")
    busy: Percent | None = Field(
        None,
        description="repeat a block when other programs use more than this share of the node's CPUs; "
        "default: report it",
    )
    options: ListOf[Annotated[str, AfterValidator(_check_slurm_option)]] = Field(
        (), description="additional sbatch options, such as --qos=high"
    )

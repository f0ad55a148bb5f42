"""Types of the values in matrix.yaml, so that no later command rejects what `envmatrix check` accepted."""

from __future__ import annotations

import math
import re
import shlex
from typing import Annotated

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as PipRequirement
from pydantic import AfterValidator, BeforeValidator

from envmatrix.matrix import placeholders
from envmatrix.matrix.value_types import (
    AS_SCALAR,
    AS_WORDS,
    ListOf,
    Text,
    VariableName,
    as_quantity,
    check_match,
    check_printable,
    matching,
)
from envmatrix.system import bench_options
from envmatrix.system.host import parse_cpus

_IMAGE_REFERENCE = r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*"
_PROGRAM = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
#: The dynamic loader splits LD_PRELOAD at whitespace and colons.
_LIBRARY = r"((/|\{(home|cache|matrix)\}/)[^:\s\x00-\x1f\x7f]*)?[^/:\s\x00-\x1f\x7f]+"


def _check_cpu_list(value: str) -> str:
    """Check a list of CPUs or NUMA nodes; it may be a template."""
    unknown = placeholders.unknown_template(value)
    if unknown:
        raise ValueError(f"unknown template {{{unknown}}}; known: {', '.join(placeholders.TEMPLATE_NAMES)}")
    parse_cpus(placeholders.fill_templates(value, placeholders.SAMPLE_VALUES))
    return value


def _check_machine_cpus(value: str) -> str:
    parse_cpus(value)
    return value


def _read_cpu_quota(value: object) -> float:
    """Read a CPU quota in CPUs; the kernel's minimum is 0.01 (1 ms of 100)."""
    try:
        cpus = float(str(value))
    except ValueError:
        cpus = math.nan
    if not 0.01 <= cpus <= 10_000:
        raise ValueError(f"{value!r} is not a number of CPUs of at least 0.01, such as 1 or 1.5")
    return cpus


def _check_ready_image(value: str) -> str:
    """Check an image that is used unchanged: a reference in Docker's form, or a file."""
    complaint = "is not an image, such as org/name:tag, or a .tar or .sif file"
    return value if is_image_file(value) else check_match(_IMAGE_REFERENCE, value, complaint)


def is_image_file(value: str) -> bool:
    """Return whether an image is named by a file: a Docker archive or a SIF."""
    return value.endswith((".sif", ".tar", ".tar.gz", ".tgz")) or value.startswith(("/", "./", "../", "~"))


def check_requirement(value: str) -> str:
    """Check an argument of pip install: a requirement, or the path of a wheel; never an option."""
    if not value.startswith("-") and ("/" in value or value.endswith(".whl")) and " @ " not in value:
        return value
    complaint = f"{value!r} is not a valid requirement, such as numpy==2.3.5"
    try:
        address = PipRequirement(value).url
    except InvalidRequirement as error:
        raise ValueError(f"{complaint}: {str(error).splitlines()[0]}") from None
    if address and not re.match(r"[a-z][a-z+]*:", address):
        raise ValueError(f"{complaint}: {address!r} is not a URL")
    return value


def _check_debian_packages(value: str) -> str:
    """Check names of Debian packages; '|' separates alternatives."""
    for name in value.split("|"):
        check_match("[a-z0-9][a-z0-9+.-]+", name.strip(), "is not a Debian package, such as libjemalloc2")
    return value


def _check_level_variable(value: str) -> str:
    if value in {"LD_PRELOAD", "PYTHONPATH", "PATH", "HOME"}:
        raise ValueError(f"{value} is set by envmatrix" + ("; use `preload:`" if value == "LD_PRELOAD" else ""))
    return value


def _check_source_file(value: str) -> str:
    parts = value.split("/")
    if value.startswith("/") or not all(parts) or {".", ".."} & set(parts) or "\\" in value:
        raise ValueError(f"{value!r} must be a file inside the source distribution, such as src/CMakeLists.txt")
    return check_printable(value)


CpuList = Annotated[Text, AfterValidator(_check_cpu_list)]
Cpus = Annotated[Text, AfterValidator(_check_machine_cpus)]
CpuQuota = Annotated[float, BeforeValidator(_read_cpu_quota), as_quantity(r"^\s*[0-9.]+\s*$", minimum=0.01)]
Suite = Annotated[Text, matching("[a-z][a-z0-9-]*", "is not a Debian suite, such as bookworm, trixie or sid")]
ReadyImage = Annotated[Text, AfterValidator(_check_ready_image)]
BaseImage = Annotated[Text, matching(_IMAGE_REFERENCE, "is not an image, such as debian:bookworm-slim@sha256:...")]
PythonVersion = Annotated[Text, matching(r"\d+(\.\d+){0,2}t?", "is not a Python version, such as 3.11 or 3.13t")]
Argument = Annotated[Text, matching(r"(?!-).*\S.*", "is not valid: it must not be empty, nor begin with '-'")]
Requirement = Annotated[Text, AfterValidator(check_requirement)]
DebianPackage = Annotated[Text, AfterValidator(_check_debian_packages)]
Module = Annotated[Text, matching("[A-Za-z0-9][A-Za-z0-9._+/-]*", "is not the name of a module, such as PyTorch/2.9.1")]
LevelVariable = Annotated[VariableName, AfterValidator(_check_level_variable)]
LibraryFile = Annotated[
    str,
    matching(_LIBRARY, "must be a library's file name, such as libjemalloc.so.2, or its absolute path, without spaces"),
]
SourceFile = Annotated[str, AfterValidator(_check_source_file)]
Program = Annotated[str, matching(_PROGRAM, "must be the name of a program, such as cmake")]


def _check_program_variable(value: str) -> str:
    instead = {"LD_PRELOAD": "write `preload:` in a level", "HOME": "write `home: real`"}.get(value)
    if instead or value.startswith(("ENVMATRIX_", "BENCH_")):
        raise ValueError(f"{value} is set by envmatrix" + (f"; {instead}" if instead else ""))
    return value


def _check_not_secret(name: str) -> str:
    """Reject a variable that looks like a secret: matrix.yaml is stored with the run and may be shared."""
    if bench_options.hides_value(name):
        raise ValueError(
            f"{name} looks like a secret, and a run stores its matrix; export it, and write `pass_env: {name}`"
        )
    return name


def _split_command(value: object) -> object:
    """Split a command written as one text into words as a shell would; reject shell operators."""
    if not isinstance(value, str):
        return value
    lexer = shlex.shlex(value, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list(lexer)
    operator = next((word for word in words if word and set(word) <= set("();<>|&")), None)
    if operator is not None:
        raise ValueError(
            f"commands do not run in a shell, so {operator!r} would be an argument; write [bash, -c, {value!r}]"
        )
    return tuple(words)


ProgramVariable = Annotated[VariableName, AfterValidator(_check_program_variable)]
WrittenVariable = Annotated[ProgramVariable, AfterValidator(_check_not_secret)]
Command = Annotated[tuple[Text, ...], BeforeValidator(_split_command), AS_WORDS]
#: It may begin with a placeholder for a user's folder, as in a run's files (``results/anonymize.py``).
Folder = Annotated[
    Text,
    matching(
        r"(?=.*[^/])(/|\{(home|cache|matrix)\}(/|\Z))[^:,\\\s]*",
        "must be the absolute path of a folder other than /, without spaces, colons and commas",
    ),
]


_SLURM_WORD = r"[A-Za-z0-9_.:,=+*&|\[\]()@/!~-]+"
#: sbatch options that envmatrix sets in the script of a block.
_RESERVED_OPTIONS = {
    "--array", "--chdir", "--comment", "--error", "--exclude", "--exclusive", "--export", "--job-name", "--mem",
    "--nodelist", "--nodes", "--ntasks", "--open-mode", "--output", "--overcommit", "--parsable", "--wait", "--wrap",
}  # fmt: skip


def _check_slurm_option(value: str) -> str:
    check_match(rf"(?=--){_SLURM_WORD}", value, "is not an sbatch option of the form --name=value")
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
    str, matching(f"(?!-){_SLURM_WORD}", "contains a character that an #SBATCH line cannot contain"), AS_SCALAR
]
SlurmOption = Annotated[str, AfterValidator(_check_slurm_option)]

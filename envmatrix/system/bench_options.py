"""Options, digests and variables of the benchmark, in its own words (``shared_bench_modules``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import BaseModel, ConfigDict

from envmatrix.system import shared_bench_modules as bench

#: Prefix of checks on package versions.
_PACKAGE = "packages."
OptionValue: TypeAlias = bench.OptionValue


class Option(BaseModel):
    """One option of the built-in workloads; ``type`` is int, float, bool, str or list-of-int.

    ``entry_points`` is the entry-point group with more ``choices`` from other packages; '' if there is none.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    type: str
    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    entry_points: str = ""


class UnknownOptionError(KeyError):
    """The benchmark has no option with this name."""


class WrongValueError(ValueError):
    """An invalid value of an option: ``message`` says what it must be, ``remedy`` what to write."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@lru_cache(maxsize=1)
def options() -> Mapping[str, Option]:
    """Return the options of the built-in workloads by name."""
    return {name: Option.model_validate(entry) for name, entry in bench.options.listed().items()}


def convert(name: str, written: object) -> OptionValue:
    """Convert an option's value in matrix.yaml (a text, None, a list of texts).

    Raises UnknownOptionError or WrongValueError.
    """
    listed = bench.options.listed()
    if name not in listed:
        raise UnknownOptionError(name)
    try:
        return bench.options.convert(listed[name], written)
    except bench.options.OptionError as error:
        raise WrongValueError(error.text, error.remedy) from None


def broken_rules(values: Mapping[str, OptionValue]) -> Sequence[bench.BrokenRule]:
    """Return the rules that a combination violates; options not given have their defaults."""
    return bench.options.broken_rules(values)


def check_divisibility(values: Mapping[str, OptionValue], variables: Mapping[str, str]) -> None:
    """Raise WrongValueError if a batch does not divide by the processes, or processes by the nodes."""
    try:
        bench.options.check_divisibility(values, variables)
    except bench.options.OptionError as error:
        raise WrongValueError(error.text, error.remedy) from None


def command_line_arguments(values: Mapping[str, OptionValue]) -> list[str]:
    """Return options as arguments of ``python -m bench run``."""
    return [f"--{name.replace('_', '-')}={_option_text(value)}" for name, value in values.items()]


def _option_text(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def folder_digest(folder: Path) -> str:
    """Return the digest of a ``bench`` folder as in its records."""
    return bench.code_digest.folder_digest(str(folder))


def recorded_names_variable(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that lists which values set by an environment may be recorded; {} if none is needed."""
    names = sorted(name for name in variables if not bench.recorded_variables.is_always_recorded(name))
    return {bench.recorded_variables.NAMES: ",".join(names)} if names else {}


def recorded_packages_variable(claimed: Iterable[str]) -> dict[str, str]:
    """Return the variable that lists the packages named by these paths of checks; {} if there are none."""
    names = sorted({path.removeprefix(_PACKAGE) for path in claimed if path.startswith(_PACKAGE)})
    return {bench.recorded_variables.PACKAGES: ",".join(names)} if names else {}


def recorded_variable(name: str, value: str) -> str:
    """Return a record's text for a variable that the environment sets."""
    return bench.recorded_variables.recorded_text(name, value, (name,))


def is_secret(recorded: str | None) -> bool:
    """Return whether a record hides a variable's value because its name looks like a secret."""
    return recorded == bench.recorded_variables.HIDDEN


def is_only_set(recorded: str | None) -> bool:
    """Return whether a record says only that a variable was set, because its value was not known to matter."""
    return recorded == bench.recorded_variables.SET


def is_always_recorded(name: str) -> bool:
    """Return whether the value of a variable is always recorded."""
    return bench.recorded_variables.is_always_recorded(name)


def hides_value(name: str) -> bool:
    """Return whether a record hides a variable's value because its name looks like a secret."""
    return bench.recorded_variables.recorded_text(name, "", (name,)) == bench.recorded_variables.HIDDEN


def without_userinfo(text: str) -> str:
    """Return a text with passwords and tokens removed from its URLs."""
    return bench.recorded_variables.without_userinfo(text)


def node_count(values: Mapping[str, OptionValue]) -> int:
    """Return the number of machines of a workload with these options; 1 for a user's program."""
    return cast("int", values.get("nodes") or 1)

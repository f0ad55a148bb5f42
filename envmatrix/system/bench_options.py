"""Use the benchmark's own code for options, digests, variables and quantities, so that host and benchmark agree.

``bench`` is not imported, because host code and trial code are kept separate. These five modules need only the standard
library and are loaded by path, only here: ``bench/options.py``, ``bench/digest.py``, ``bench/variables.py``,
``bench/quantities.py`` and ``bench/processor.py``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from pydantic import BaseModel, ConfigDict

from envmatrix.system.project import bench_folder

#: Prefix of checks on package versions.
_PACKAGE = "packages."
OptionValue: TypeAlias = bool | int | float | str | list[int] | None


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


class BrokenRule(Protocol):
    """A rule that a combination of options violates."""

    @property
    def message(self) -> str:
        """Why the options are incompatible, and which value is the cause."""

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options, the offending one first."""


class _OptionError(Exception):
    text: str
    remedy: str


class _Options(Protocol):
    """The interface of bench/options.py that is used here."""

    OptionError: type[_OptionError]

    def listed(self) -> Mapping[str, Mapping[str, object]]: ...
    def convert(self, option: Mapping[str, object], value: object) -> OptionValue: ...
    def broken_rules(self, values: Mapping[str, OptionValue]) -> Sequence[BrokenRule]: ...
    def check_shares(
        self, values: Mapping[str, OptionValue], variables: Mapping[str, str], threads: int = 1
    ) -> None: ...


class _Digest(Protocol):
    """The interface of bench/digest.py that is used here."""

    def folder_digest(self, folder: str) -> str: ...


class _Variables(Protocol):
    """The interface of bench/variables.py that is used here."""

    HIDDEN: str
    NAMES: str
    PACKAGES: str
    SET: str

    def bears_on_performance(self, name: str) -> bool: ...
    def shown(self, name: str, value: str, named: Collection[str] = ()) -> str: ...
    def without_userinfo(self, text: str) -> str: ...


class Unit(Protocol):
    """A unit parsed by bench/quantities.py: its ``kind`` is time, rate, size or count."""

    text: str
    kind: str
    scale: float
    per: str
    by_device: bool


class NumberField(Protocol):
    """A number in a line, parsed by bench/quantities.py."""

    start: int
    end: int
    value: float
    label: str
    connector: str
    wrapper: str
    unit: Unit | None
    unit_end: int
    unclear: bool


class _Quantities(Protocol):
    """The interface of bench/quantities.py that is used here."""

    def plain(self, text: str) -> str: ...
    def without_colours(self, text: str) -> str: ...
    def words(self, label: str) -> str: ...
    def masked(self, line: str) -> tuple[str, bool]: ...
    def unit_of(self, text: str) -> Unit | None: ...
    def fields(self, line: str) -> Sequence[NumberField]: ...
    def of_label(self, label: str) -> bool: ...
    def is_other(self, label: str) -> bool: ...
    def is_counter(self, label: str) -> bool: ...
    def field_at(self, line: str, start: int, end: int, *, literally: bool) -> NumberField: ...


class Processor(Protocol):
    """The interface of bench/processor.py that is used here."""

    def model(self, cpuinfo: str) -> str | None:
        """Return the processor's name, None if unknown."""

    def is_virtual(self, cpuinfo: str, architecture: str) -> bool | None:
        """Return whether it is a virtual machine's, None if unknown."""

    def instruction_sets(self, cpuinfo: str) -> list[str] | None:
        """Return the instruction sets that matter for speed, None if unknown."""


@lru_cache
def _load_module(file: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"_envmatrix_bench_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _options() -> _Options:
    return cast("_Options", _load_module(bench_folder() / "options.py"))


@lru_cache(maxsize=1)
def options() -> Mapping[str, Option]:
    """Return the options of the built-in workloads by name."""
    return {name: Option.model_validate(entry) for name, entry in _options().listed().items()}


def convert(name: str, written: object) -> OptionValue:
    """Convert an option's value in matrix.yaml (a text, None, a list of texts).

    Raises UnknownOptionError or WrongValueError.
    """
    bench = _options()
    if name not in bench.listed():
        raise UnknownOptionError(name)
    try:
        return bench.convert(bench.listed()[name], written)
    except bench.OptionError as error:
        raise WrongValueError(error.text, error.remedy) from None


def broken_rules(values: Mapping[str, OptionValue]) -> Sequence[BrokenRule]:
    """Return the rules that a combination violates; options not given have their defaults."""
    return _options().broken_rules(values)


def check_shares(values: Mapping[str, OptionValue], variables: Mapping[str, str]) -> None:
    """Raise WrongValueError if a batch does not divide by the processes, or processes by the nodes."""
    bench = _options()
    try:
        bench.check_shares(values, variables)
    except bench.OptionError as error:
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
    return cast("_Digest", _load_module(bench_folder() / "digest.py")).folder_digest(str(folder))


def _variables() -> _Variables:
    return cast("_Variables", _load_module(bench_folder() / "variables.py"))


def processor() -> Processor:
    """Return the module that reads /proc/cpuinfo, for the host and for trials."""
    return cast("Processor", _load_module(bench_folder() / "processor.py"))


@lru_cache(maxsize=1)
def quantities() -> _Quantities:
    """Return the module that parses a program's numbers, for the host and for trials."""
    return cast("_Quantities", _load_module(bench_folder() / "quantities.py"))


def variables_to_show(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that lists which values set by an environment may be recorded; {} if none is needed."""
    names = sorted(name for name in variables if not _variables().bears_on_performance(name))
    return {_variables().NAMES: ",".join(names)} if names else {}


def packages_to_look_up(claimed: Iterable[str]) -> dict[str, str]:
    """Return the variable that lists the packages named by these paths of checks; {} if there are none."""
    names = sorted({path.removeprefix(_PACKAGE) for path in claimed if path.startswith(_PACKAGE)})
    return {_variables().PACKAGES: ",".join(names)} if names else {}


def recorded_variable(name: str, value: str) -> str:
    """Return a record's text for a variable that the environment sets."""
    return _variables().shown(name, value, (name,))


def is_secret(recorded: str | None) -> bool:
    """Return whether a record hides a variable's value because its name looks like a secret."""
    return recorded == _variables().HIDDEN


def is_only_set(recorded: str | None) -> bool:
    """Return whether a record says only that a variable was set, because its value was not known to matter."""
    return recorded == _variables().SET


def bears_on_performance(name: str) -> bool:
    """Return whether the value of a variable is always recorded."""
    return _variables().bears_on_performance(name)


def hides_value(name: str) -> bool:
    """Return whether a record hides a variable's value because its name looks like a secret."""
    return _variables().shown(name, "", (name,)) == _variables().HIDDEN


def without_userinfo(text: str) -> str:
    """Return a text with passwords and tokens removed from its URLs."""
    return _variables().without_userinfo(text)


def node_count(values: Mapping[str, OptionValue]) -> int:
    """Return the number of machines of a workload with these options; 1 for a user's program."""
    return cast("int", values.get("nodes") or 1)

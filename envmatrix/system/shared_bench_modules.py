"""The five modules of ``bench/`` that the host uses too, so that host and benchmark agree.

``bench`` is not imported, because host code and trial code are kept separate. These modules need only the standard
library, and each is loaded by its path when it is first used. The classes here say what the host uses of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

from envmatrix.system.resource_paths import bench_folder

OptionValue: TypeAlias = bool | int | float | str | list[int] | None


class BrokenRule(Protocol):
    """A rule that a combination of options violates: ``options`` are their names, the offending one first."""

    @property
    def message(self) -> str:
        """Why the options are incompatible, and which value is the cause."""

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options, the offending one first."""


class _OptionError(Exception):
    """What bench/options.py raises for a value that an option cannot have."""

    text: str
    remedy: str


class _Options(Protocol):
    """What is used of bench/options.py."""

    OptionError: type[_OptionError]

    def listed(self) -> Mapping[str, Mapping[str, object]]: ...
    def convert(self, option: Mapping[str, object], value: object) -> OptionValue: ...
    def broken_rules(self, values: Mapping[str, OptionValue]) -> Sequence[BrokenRule]: ...
    def check_divisibility(
        self, values: Mapping[str, OptionValue], variables: Mapping[str, str], threads: int = 1
    ) -> None: ...


class _CodeDigest(Protocol):
    """What is used of bench/code_digest.py."""

    def folder_digest(self, folder: str) -> str: ...


class _RecordedVariables(Protocol):
    """What is used of bench/recorded_variables.py."""

    HIDDEN: str
    NAMES: str
    PACKAGES: str
    SET: str

    def is_always_recorded(self, name: str) -> bool: ...
    def recorded_text(self, name: str, value: str, named: Collection[str] = ()) -> str: ...
    def without_userinfo(self, text: str) -> str: ...


class Unit(Protocol):
    """A unit parsed by bench/number_parser.py: its ``kind`` is time, rate, size or count."""

    text: str
    kind: str
    scale: float
    per: str
    by_device: bool


class NumberField(Protocol):
    """A number in a line, parsed by bench/number_parser.py."""

    start: int
    end: int
    value: float
    label: str
    connector: str
    wrapper: str
    unit: Unit | None
    unit_end: int
    unclear: bool


class _NumberParser(Protocol):
    """What is used of bench/number_parser.py."""

    def redraws_as_lines(self, text: str) -> str: ...
    def without_colours(self, text: str) -> str: ...
    def words(self, label: str) -> str: ...
    def mask_dates_and_detect_counts(self, line: str) -> tuple[str, bool]: ...
    def unit_of(self, text: str) -> Unit | None: ...
    def fields(self, line: str) -> Sequence[NumberField]: ...
    def label_names_speed(self, label: str) -> bool: ...
    def is_other(self, label: str) -> bool: ...
    def is_counter(self, label: str) -> bool: ...
    def number_around(self, line: str, start: int, end: int, *, literally: bool) -> NumberField: ...


class Processor(Protocol):
    """What is used of bench/processor.py."""

    def model(self, cpuinfo: str) -> str | None:
        """Return the processor's name, None if unknown."""

    def is_virtual(self, cpuinfo: str, architecture: str) -> bool | None:
        """Return whether it is a virtual machine's, None if unknown."""

    def instruction_sets(self, cpuinfo: str) -> list[str] | None:
        """Return the instruction sets that matter for speed, None if unknown."""


code_digest: _CodeDigest
options: _Options
number_parser: _NumberParser
processor: Processor
recorded_variables: _RecordedVariables
_NAMES = ("code_digest", "number_parser", "options", "processor", "recorded_variables")


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(name)
    spec = importlib.util.spec_from_file_location(f"_envmatrix_bench_{name}", bench_folder() / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    globals()[name] = module
    return module

"""Environment variables: which are known, to report probable typos, and which library reads them.

The names and their sources are in known_variables.txt. The list cannot be complete, so an unknown name is reported, and
never rejected. readers.yaml says which library reads a variable: without its reader a setting has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import yaml

from envmatrix.errors import InputError, Where
from envmatrix.matrix.model import Level, Matrix
from envmatrix.matrix.parse import locate_key
from envmatrix.matrix.yaml_positions import Key

#: Start of a message that nothing in the process reads a setting.
NOT_IN_EFFECT = "not in effect: "


class PresenceTest(Enum):
    """What, besides the mapped libraries, decides whether a reader is present."""

    OPENMP = "the runtime in use, and those with running threads"
    MALLOC = "the library that provides malloc"
    MKL = "PyTorch may contain it"
    ONEDNN = "PyTorch may contain it, too"
    INDUCTOR = "something was compiled"
    GPU = "there is a GPU"
    MAPPED = "nothing else"


@dataclass(frozen=True)
class Reader:
    """A library that reads variables: its common ``name``, and parts of the paths of its files."""

    name: str
    libraries: tuple[str, ...]
    presence_test: PresenceTest = PresenceTest.MAPPED


def _read_readers() -> dict[str, Reader | None]:
    """Return name prefix -> reader; the longest matching prefix wins. None: every process reads it."""
    readers: dict[str, Reader | None] = {}
    for entry in yaml.safe_load(Path(__file__).with_name("readers.yaml").read_text(encoding="utf-8")):
        test = PresenceTest[entry.get("present", "MAPPED")]
        reader = Reader(entry["name"], tuple(entry["libraries"]), test) if "name" in entry else None
        readers |= dict.fromkeys(entry["prefixes"], reader)
    return readers


_READERS = _read_readers()


def has_known_reader(name: str) -> bool:
    """Return whether the reader of a variable is known."""
    return _longest_prefix(name) is not None


def find_reader(name: str) -> Reader | None:
    """Return the reader of a variable; None if every process reads it, or if it is unknown."""
    return _READERS.get(_longest_prefix(name) or "")


def _longest_prefix(name: str) -> str | None:
    return max((start for start in _READERS if name.startswith(start)), key=len, default=None)


#: Prefixes whose variables are all in the list, except new ones.
FAMILIES = ("OMP_", "KMP_", "GOMP_", "MKL_", "MALLOC_", "TORCH_", "NCCL_", "ONEDNN_", "DNNL_")
#: Prefixes of other families, despite their similar names: TORCHINDUCTOR_ and TORCH_ are different.
_OTHER_FAMILIES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "RCCL_")
#: Allowed typos: in a name of a known family, and in any other name, which may be the user's own.
_MAX_TYPOS, _MAX_TYPOS_ELSEWHERE = 2, 1


def unread_message(name: str, near: str = "") -> str:
    """Return the warning that a variable may have no effect."""
    suggestion_text = f"; did you mean {near}?" if near else ""
    return f"not verified: envmatrix knows no program or library that reads {name}{suggestion_text}"


@cache
def known_variables() -> frozenset[str]:
    """Return the names in known_variables.txt."""
    lines = (Path(__file__).with_name("known_variables.txt")).read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())


@cache
def probably_meant_name(name: str) -> str | None:
    """Return the known name that was probably meant; '' if none is similar; None if the name may be right."""
    if name in known_variables() or name.startswith(_OTHER_FAMILIES):
        return None
    in_family = name.startswith(FAMILIES)
    max_typos = _MAX_TYPOS if in_family else _MAX_TYPOS_ELSEWHERE
    distances = [
        (_edit_distance(name.upper(), known_name), known_name)
        for known_name in known_variables()
        if abs(len(name) - len(known_name)) <= max_typos
    ]
    smallest, nearest = min(distances, default=(max_typos + 1, ""))
    if smallest <= max_typos:
        return nearest
    return "" if in_family else None


def unread_variables(level: Level) -> list[str]:
    """Return the variables of a level that have no known reader.

    If the level has claims, which show its effect, return only names that are similar to a known one.
    """
    return [
        name
        for name, value in level.env.items()
        if probably_meant_name(name) or not (level.claims or _is_accepted(name, value))
    ]


def _is_accepted(name: str, value: str | None) -> bool:
    return probably_meant_name(name) is None and (value is None or has_known_reader(name))


def find_unread_variables(matrix: Matrix) -> Iterator[tuple[tuple[str, str], InputError]]:
    """Yield the level (factor, level) and the mistake of each variable that is probably misspelt."""
    for factor in matrix.factors.values():
        for level, body in factor.levels.items():
            for name in unread_variables(body):
                meant = probably_meant_name(name)
                if meant is None:  # not in a known family: only a run can show whether it is read
                    continue
                message = f"{factor.name}={level}: {unread_message(name, meant)}"
                where = _locate(Path(matrix.path), ("factors", factor.name, level, "env", name))
                remedy = f"write {meant}" if meant else "add a check (`claims:`) that shows what it does"
                remedy = f"{remedy}; otherwise its trials count as not verified"
                yield (factor.name, level), InputError(message, where=where, remedy=remedy)


def _locate(path: Path, key: Key) -> Where:
    try:
        return locate_key(path, key, key=True)
    except InputError:  # a generated matrix, or one read from a pipe
        return Where(path)


def _edit_distance(word: str, other: str) -> int:
    """Return the number of wrong, missing, extra or swapped letters (Damerau 1964)."""
    previous_row: list[int] = []
    row = list(range(len(other) + 1))
    for index, letter in enumerate(word, 1):
        previous_row, row_before_previous, row = row, previous_row, [index]
        for other_index, other_letter in enumerate(other, 1):
            row.append(
                min(
                    previous_row[other_index] + 1, row[-1] + 1, previous_row[other_index - 1] + (letter != other_letter)
                )
            )
            if index > 1 and other_index > 1 and letter == other[other_index - 2] and other_letter == word[index - 2]:
                row[other_index] = min(row[other_index], row_before_previous[other_index - 2] + 1)
    return row[-1]

"""Names of variables that are known to be read, so that a misspelt one is told: who should read it says nothing of it.

The names and where they are from are in variables.txt. That list cannot be complete: a name that is not in it is
doubted, and never refused. Who reads them is in readers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envmatrix.errors import InputError, Where
from envmatrix.matrix.model import Level, Matrix
from envmatrix.matrix.parse import place_in
from envmatrix.matrix.readers import is_known
from envmatrix.matrix.yaml_positions import Key

#: Names of these families are all known, but for newer ones.
FAMILIES = ("OMP_", "KMP_", "GOMP_", "MKL_", "MALLOC_", "TORCH_", "NCCL_", "ONEDNN_", "DNNL_")
#: Names of these are others', however like they are: TORCHINDUCTOR_CPP_WRAPPER and TORCH_INDUCTOR_CPP_WRAPPER are two.
_OTHERS = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "RCCL_")
#: So many letters may be wrong: in a family's name, and in one that belongs to none and may well be the user's own.
_WRONG, _WRONG_ELSEWHERE = 2, 1


@dataclass(frozen=True)
class Doubt:
    """A variable of a level that nothing is known to read: ``text`` says so, ``near`` is what was probably meant."""

    factor: str
    level: str
    name: str
    near: str
    where: Where

    @property
    def as_mistake(self) -> InputError:
        """It as a mistake is told, with its place and remedy."""
        remedy = f"write {self.near}" if self.near else "add a claim that shows what it does"
        said = f"{self.factor}={self.level}: {unread(self.name, self.near)}"
        return InputError(said, where=self.where, remedy=f"{remedy}; otherwise its trials are unproven")

    def __str__(self) -> str:
        return str(self.as_mistake)


def unread(name: str, near: str = "") -> str:
    """Say that a variable may have no effect."""
    meant = f"; did you mean {near}?" if near else ""
    return f"not verified: nothing is known to read {name}{meant}"


@cache
def known() -> frozenset[str]:
    """Return the names in variables.txt."""
    lines = (Path(__file__).with_name("variables.txt")).read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())


@cache
def near(name: str) -> str | None:
    """Return the known name that was probably meant, '' where none is like it; None of one that may well be right."""
    if name in known() or name.startswith(_OTHERS):
        return None
    in_family = name.startswith(FAMILIES)
    wrong = _WRONG if in_family else _WRONG_ELSEWHERE
    alike = [(_distance(name.upper(), other), other) for other in known() if abs(len(name) - len(other)) <= wrong]
    least, found = min(alike, default=(wrong + 1, ""))
    if least <= wrong:
        return found
    return "" if in_family else None


def unread_of(level: Level) -> list[str]:
    """Return the variables of a level that nothing is known to read.

    If it has a claim, which shows whether it does something, only those that are near a known name.
    """
    return [name for name, value in level.env.items() if near(name) or not (level.claims or _is_fine(name, value))]


def _is_fine(name: str, value: str | None) -> bool:
    return near(name) is None and (value is None or is_known(name))


def doubts(matrix: Matrix) -> Iterator[Doubt]:
    """Yield what is to be told of a matrix's levels, each with its place."""
    for factor in matrix.factors.values():
        for level, body in factor.levels.items():
            for name in unread_of(body):
                if near(name) is None:  # of no known family: a program's own, which only a run can tell
                    continue
                place = _place(Path(matrix.path), ("factors", factor.name, level, "env", name))
                yield Doubt(factor.name, level, name, near(name) or "", place)


def _place(path: Path, key: Key) -> Where:
    try:
        return place_in(path, key, key=True)
    except InputError:  # a matrix that was made for a program, or came through a pipe
        return Where(path)


def _distance(one: str, other: str) -> int:
    """Return how many letters are wrong, left out, too many or exchanged with their neighbour (Damerau 1964)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        before, past, row = row, before, [at]
        for to, wanted in enumerate(other, 1):
            row.append(min(before[to] + 1, row[-1] + 1, before[to - 1] + (letter != wanted)))
            if at > 1 and to > 1 and letter == other[to - 2] and wanted == one[at - 2]:
                row[to] = min(row[to], past[to - 2] + 1)
    return row[-1]

"""Write covered.md: settings that published guides recommend, and the packaged levels that cover them.

covered.yaml lists the recommendations. The state of each row follows from the packaged levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from envmatrix.engines.catalog import ENGINES
from envmatrix.evidence.dotted_paths import kind_of
from envmatrix.launchers.catalog import LAUNCHERS
from envmatrix.matrix.include import packaged_names
from envmatrix.matrix.model import Design, Level, Matrix, Workload
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import resolve_environment

_DOCS = Path(__file__).parent
_HEAD = """\
# What is covered

This page lists the advice of {sources} published guides on settings, and what envmatrix does about each of
them. In a checkout, `python docs/covered.py` generates it from the built-in levels.

| state | meaning |
|---|---|
| verified | a level or a recipe is included, and the process itself proves that the setting was active |
| not verified | a level is included, but nothing in the process shows that it was active. Reports say so |
| ships | an included engine, launcher or workload does it |
| yours | you set it in a few lines, with this key of [matrix.yaml](matrix.md). The answer names its evidence |
| no | not supported; the answer is the reason |

`envmatrix evidence ENV` shows what is active. `envmatrix list environments` lists all recipes. What was tested on a
GPU is in [Status](status.md).
"""
_SOURCES = 24
_STATES = ("verified", "not verified", "ships", "yours", "no")
_WORST_FIRST = ("not verified", "ships", "verified")


class CoverageError(Exception):
    """covered.yaml names something that does not exist."""


def whole_library() -> Matrix:
    """Return a matrix that includes every file of the library."""
    every = ", ".join(f"envmatrix:{name}" for name in packaged_names())
    text = f"version: 2\ninclude: [{every}]\nenvironments: {{baseline: {{}}}}\n"
    return parse(text, _DOCS.parent / "matrix.yaml")


def state_of(row: Mapping[str, Any], matrix: Matrix) -> tuple[str, str]:
    """Return the state of a row and its answer. Raises CoverageError if the row names something unknown."""
    if "not" in row:
        return "no", row["not"]
    if "own" in row:
        keys = [key.strip() for key in row["own"].split(",")]
        fields = {*Level.model_fields, *Design.model_fields, *Workload.model_fields}
        _require(set(keys) <= fields, row["own"])
        paths = [path.strip() for path in row.get("read", "").split(",") if path.strip()]
        for path in paths:
            kind_of(path)
        proof = f"proved by {_code(paths)}" if paths else "not verified"
        return "yours", f"{_code(keys)}; {proof}"
    states = {_state_of_word(word, matrix) for word in row["by"]}
    return next(state for state in _WORST_FIRST if state in states), _code(row["by"])


def _state_of_word(word: str, matrix: Matrix) -> str:
    kind, _, name = word.partition(" ")
    if name:
        catalog = {"workload": matrix.workloads, "engine": ENGINES.built_in, "launcher": LAUNCHERS.built_in}[kind]
        _require(name in catalog, word)
        return "ships"
    factor, is_level, level = word.partition("=")
    if is_level:
        _require(factor in matrix.factors and level in matrix.factors[factor].levels, word)
        levels = {factor: level}
    else:
        _require(word in matrix.environments, word)
        levels = dict(resolve_environment(matrix, word, {}).own_levels or {})
    proved = all(matrix.factors[one].levels[name].claims for one, name in levels.items())
    return "verified" if proved or levels.keys() <= _RECORDED else "not verified"


#: Factors whose levels are files of the image: its packages are read from it and stored in every record.
_RECORDED = {"torch"}


def _require(exists: bool, word: str) -> None:
    if not exists:
        raise CoverageError(f"covered.yaml: the library has no {word!r}")


def _code(words: list[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def page() -> str:
    """Return the text of covered.md."""
    areas = yaml.safe_load((_DOCS / "covered.yaml").read_text(encoding="utf-8"))["areas"]
    matrix = whole_library()
    states = {area: [(row, *state_of(row, matrix)) for row in rows] for area, rows in areas.items()}
    return "\n".join([_HEAD.format(sources=_SOURCES), *_totals(states), *_tables(states)]) + "\n"


def _totals(states: Mapping[str, list[tuple[Mapping[str, Any], str, str]]]) -> Iterator[str]:
    yield f"| area | {' | '.join(_STATES)} | all |\n|{'---|' * (len(_STATES) + 2)}"
    for area, rows in states.items():
        counts = Counter(state for _, state, _ in rows)
        yield f"| {area} | {' | '.join(str(counts[state]) for state in _STATES)} | {len(rows)} |"


def _tables(states: Mapping[str, list[tuple[Mapping[str, Any], str, str]]]) -> Iterator[str]:
    for area, rows in states.items():
        yield f"\n## {area}\n\n| setting | advised by | state | answer |\n|---|---|---|---|"
        for row, state, answer in rows:
            yield f"| {_cell(row['setting'])} | {_cell(row['who'])} | {state} | {_cell(answer)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    (_DOCS / "covered.md").write_text(page(), encoding="utf-8")

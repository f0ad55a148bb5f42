"""The levels of the packaged library, for tests that hold each of them against a process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from envmatrix.matrix.include import packaged_names
from envmatrix.matrix.model import Matrix
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import Environment, build_environment
from envmatrix.system.project import default_matrix

#: What a process without any setting is already; the tables call it a no-op.
ALREADY = {("openmp", "gnu"), ("malloc", "glibc"), ("fp32-maths", "strict")}


@lru_cache(maxsize=1)
def matrix() -> Matrix:
    """Return a matrix of every file of the library: the root one includes most of them, not all."""
    every = ", ".join(f"envmatrix:{name}" for name in packaged_names())
    return parse(f"version: 2\ninclude: [{every}]\nenvironments: {{baseline: {{}}}}\n", default_matrix())


def levels() -> Iterator[tuple[str, str]]:
    """Yield (factor, level) of all that sets, preloads or claims something.

    What is built for an image is recorded with its digests.
    """
    for factor in matrix().factors.values():
        for name, level in factor.levels.items():
            if level.env or level.preload or level.claims:
                yield factor.name, name


def environment(factor: str, name: str, cpus: int) -> Environment:
    """Return the environment of one level, with what it requires, on a machine of so many CPUs."""
    level = matrix().factors[factor].levels[name]
    chosen = {other: allowed[0] for other, allowed in level.requires.items()}
    facts = {"physical_cores": str(cpus), "logical_cpus": str(cpus)}
    return build_environment(matrix(), "it", {**chosen, factor: name}, facts)

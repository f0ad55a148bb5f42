"""The levels of the packaged library, for tests that check each of them against a process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from envmatrix.matrix.include import packaged_names
from envmatrix.matrix.model import Matrix
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import Environment, build_environment
from envmatrix.system.resource_paths import bundled_matrix_file

#: Levels that are the default of a process; the tables call them a no-op.
ALREADY = {
    ("openmp", "gnu"), ("malloc", "glibc"), ("fp32-maths", "strict"), ("openmp-dynamic", "off"),
    ("affinity", "cores-unbound"),
}  # fmt: skip


@lru_cache(maxsize=1)
def matrix() -> Matrix:
    """Return a matrix of all files of the library: the root one includes most of them, not all."""
    every = ", ".join(f"envmatrix:{name}" for name in packaged_names())
    return parse(f"version: 2\ninclude: [{every}]\nenvironments: {{baseline: {{}}}}\n", bundled_matrix_file())


def unverified() -> set[tuple[str, str]]:
    """Return (factor, level) of all whose description says that nothing tells what came of it."""
    return {
        (factor.name, name)
        for factor in matrix().factors.values()
        for name, level in factor.levels.items()
        if level.description.endswith("(not verified)")
    }


def levels() -> Iterator[tuple[str, str]]:
    """Yield (factor, level) of all that sets, preloads or claims something, and does not say that it is unverified.

    What is built for an image is recorded with its digests.
    """
    for factor in matrix().factors.values():
        for name, level in factor.levels.items():
            if (level.env or level.preload or level.claims) and (factor.name, name) not in unverified():
                yield factor.name, name


def environment(factor: str, name: str, cpus: int) -> Environment:
    """Return the environment of one level and the levels it requires, for a machine with so many CPUs."""
    level = matrix().factors[factor].levels[name]
    chosen = {other: allowed[0] for other, allowed in level.requires.items()}
    facts = {"physical_cores": str(cpus), "logical_cpus": str(cpus), "gpu_cpu_list": "96-99",
             "cpu_list": "96-99", "first_node": "7", "first_node_cpu_list": "96-99"}  # fmt: skip
    return build_environment(matrix(), "it", {**chosen, factor: name}, facts)

"""What is searched: the arguments of ``envmatrix tune``, and the factors that can affect a user's program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.api.atlas import OrderAtlas
from envmatrix.api.user_program.matrix_for_program import GeneratedMatrix
from envmatrix.evidence.checks import parse_claims
from envmatrix.matrix import Matrix
from envmatrix.matrix.additions import replace_includes
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.user_program.settings_in_code import find_conflict

#: Factors for a program on a GPU: GPU memory, loading of modules, communication, and the host's memory and threads.
#: With OpenMP runtimes, affinities and wait policies there would be too many combinations to search.
_GPU_FACTORS = ("malloc", "hugepages", "threads", "cuda-allocator", "cuda-loading", "nccl")


@dataclass(frozen=True)
class SearchRequest(NewRun):
    """What is searched, for how long, and how its runs are started and stored; ``atlas`` orders the candidates."""

    budget: float | str | None = None
    factors: Sequence[str] | None = None
    sampler: str = ""
    atlas: OrderAtlas | None = None


def make_default_space(generated: GeneratedMatrix, file: Path) -> tuple[Matrix, dict[str, tuple[str, ...]]]:
    """Return the matrix of a program with the whole search space, as if it were in ``file``, and its levels by factor.

    TF32 is left out: it changes results, and nothing checks the results of a program on the command line. So are
    levels that the program overrides itself.
    """
    libraries = ["recipes" if generated.torch else "malloc", "hugepages"]
    libraries += ["cuda"] if generated.on_gpu else []
    libraries += ["collectives"] if generated.on_gpu > 1 else []
    matrix = replace_includes(generated.text, file, [f"envmatrix:{library}" for library in libraries])
    levels = {
        factor.name: tuple(
            level
            for level, body in factor.levels.items()
            if level == factor.reference
            or not find_conflict(generated.own, body.env, parse_claims(body.claims), body.cpus)
        )
        for factor in matrix.factors.values()
        if not factor.changes_installed_software and (factor.name in _GPU_FACTORS or not generated.on_gpu)
    }
    return matrix, levels

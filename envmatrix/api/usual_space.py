"""What is searched for a program of one's own: the factors that bear on what it was seen to be."""

from __future__ import annotations

from pathlib import Path

from envmatrix.api.programs import GeneratedMatrix
from envmatrix.matrix import Matrix
from envmatrix.matrix.override import with_includes

#: Where a GPU does the work: its memory, its modules, how processes talk, and of the host what feeds it. Crossed with
#: OpenMP runtimes, affinities and wait policies as well these would be more cells than a search can hold.
_GPU_FACTORS = ("malloc", "hugepages", "threads", "cuda-allocator", "cuda-loading", "nccl")


def make_default_space(generated: GeneratedMatrix, file: Path) -> tuple[Matrix, dict[str, tuple[str, ...]]]:
    """Return the matrix of a program, as if ``file`` held it, with all that is searched; and levels by their factors.

    TF32 is none of it: it changes results, and nothing checks what a program on the command line computes.
    """
    libraries = ["recipes" if generated.torch else "malloc", "hugepages"]
    libraries += ["cuda"] if generated.on_gpu else []
    libraries += ["collectives"] if generated.on_gpu > 1 else []
    matrix = with_includes(generated.text, file, [f"envmatrix:{library}" for library in libraries])
    levels = {
        factor.name: tuple(factor.levels)
        for factor in matrix.factors.values()
        if not factor.is_image and (factor.name in _GPU_FACTORS or not generated.on_gpu)
    }
    return matrix, levels

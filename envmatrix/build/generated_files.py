"""Generate the files of containers/ from matrix.yaml: a Dockerfile and a .def per environment."""

from __future__ import annotations

from collections.abc import Iterable

from envmatrix.build.debian_suites import BASES, suite_for_python
from envmatrix.build.definitions import make_recipe, standalone_definition, standalone_dockerfile
from envmatrix.matrix import Matrix
from envmatrix.plan.environment import Environment, Image, resolve_environment


def base_reference(image: Image) -> str:
    """Return the base named in a definition: from matrix.yaml, or the pinned official image of its suite."""
    suite = suite_for_python(image.suite, image.python)
    return image.base or BASES.get(suite) or f"debian:{suite}-slim"


def can_be_image(environment: Environment) -> bool:
    """Return whether an environment can be built as an image; one with a Python of the host cannot."""
    return not environment.image.on_host and environment.image.ready is None


def definition_files(matrix: Matrix, names: Iterable[str]) -> dict[str, str]:
    """Return file name -> text for environments of ``matrix``. Does not depend on this machine."""
    files: dict[str, str] = {}
    for name in names:
        environment = resolve_environment(matrix, name, {})
        if can_be_image(environment):
            recipe = make_recipe(environment.image, base_reference(environment.image))
            files[f"{name}.Dockerfile"] = standalone_dockerfile(environment, recipe)
            files[f"{name}.def"] = standalone_definition(environment, recipe)
    return files

"""Create a matrix with added designs, environments or includes, as if they were written in its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from envmatrix.matrix.include import LIBRARY_FOLDER, yaml_text
from envmatrix.matrix.model import Factor, Matrix
from envmatrix.matrix.parse import parse
from envmatrix.matrix.yaml_positions import Data, parse_yaml, read_text


def with_only_design(
    matrix: Matrix, name: str, design: Mapping[str, object], environments: Mapping[str, Mapping[str, str]]
) -> Matrix:
    """Return the matrix with one design only, and added environments. Raises InputError like ``parse``.

    Its own workloads stay as they are, even if they are not those of its text.
    """
    document = parse_yaml(matrix.text, Path(matrix.path)).mapping(())
    entries = document.get("environments")
    existing: Mapping[str, object] = entries if isinstance(entries, dict) else {}
    all_environments = {**existing, **{added: dict(levels) for added, levels in environments.items()}}
    text = yaml_text({**document, "environments": all_environments, "designs": {name: dict(design)}})
    changed = parse(text, Path(matrix.path))
    return changed.model_copy(update={"workloads": {**changed.workloads, **matrix.workloads}})


def with_packaged_levels(matrix: Matrix, levels: Sequence[tuple[str, str]]) -> Matrix:
    """Return the matrix with levels (factor, level) of the packaged files added; those that it has are unchanged."""
    missing = [(name, level) for name, level in levels if name not in matrix.factors
               or level not in matrix.factors[name].levels]  # fmt: skip
    if not missing:
        return matrix
    source = parse_yaml(matrix.text, Path(matrix.path))
    factors = dict(source.mapping(("factors",)))
    for name, level in missing:
        reference, body = _packaged_level(name, level)
        own = factors.get(name)
        factors[name] = {**(own if isinstance(own, dict) else {reference: {}}), level: body}
    return parse(yaml_text({**source.mapping(()), "factors": factors}), Path(matrix.path))


def only_levels(matrix: Matrix, is_kept: Callable[[str, Factor, str], bool]) -> Matrix:
    """Return the matrix with those levels only for which ``is_kept`` (factor's name, factor, level) is true."""
    factors = {
        name: factor.model_copy(
            update={"levels": {level: body for level, body in factor.levels.items() if is_kept(name, factor, level)}}
        )
        for name, factor in matrix.factors.items()
    }
    return matrix.model_copy(update={"factors": factors})


def _packaged_level(name: str, level: str) -> tuple[str, Data]:
    """Return the first level of a packaged factor, and the body of one of its levels."""
    for file in sorted(LIBRARY_FOLDER.glob("*.yaml")):
        bodies = parse_yaml(read_text(file), file).mapping(("factors", name))
        if level in bodies:
            return next(iter(bodies)), bodies[level]
    msg = f"no packaged level {name}={level}"
    raise LookupError(msg)


def replace_includes(text: str, path: Path, includes: Sequence[str]) -> Matrix:
    """Return the matrix of a text with its includes replaced by these. Raises InputError like ``parse``."""
    return parse(yaml_text({**parse_yaml(text, path).mapping(()), "include": list(includes)}), path)

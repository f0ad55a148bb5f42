"""Create a matrix with added designs, environments or includes, as if they were written in its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from envmatrix.matrix.model import Matrix
from envmatrix.matrix.parse import parse
from envmatrix.matrix.yaml_positions import parse_yaml


class _NoAliasDumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def with_design(
    matrix: Matrix, name: str, design: Mapping[str, object], environments: Mapping[str, Mapping[str, str]]
) -> Matrix:
    """Return the matrix with one design only, and added environments. Raises InputError like ``parse``."""
    document = parse_yaml(matrix.text, Path(matrix.path)).mapping(())
    entries = document.get("environments")
    existing: Mapping[str, object] = entries if isinstance(entries, dict) else {}
    all_environments = {**existing, **{one: dict(levels) for one, levels in environments.items()}}
    return parse(
        _yaml_text({**document, "environments": all_environments, "designs": {name: dict(design)}}), Path(matrix.path)
    )


def with_includes(text: str, path: Path, includes: Sequence[str]) -> Matrix:
    """Return the matrix of a text with its includes replaced by these. Raises InputError like ``parse``."""
    return parse(_yaml_text({**parse_yaml(text, path).mapping(()), "include": list(includes)}), path)


def _yaml_text(document: Mapping[str, object]) -> str:
    return yaml.dump(dict(document), Dumper=_NoAliasDumper, sort_keys=False, width=110)

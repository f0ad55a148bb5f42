"""A matrix with something more in it, as if it had been written there: a run keeps it whole."""

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
    """Return the matrix with one design alone, and environments by their levels. Raises InputError as ``parse``."""
    document = parse_yaml(matrix.text, Path(matrix.path)).mapping(())
    entries = document.get("environments")
    existing: Mapping[str, object] = entries if isinstance(entries, dict) else {}
    all_environments = {**existing, **{one: dict(levels) for one, levels in environments.items()}}
    return parse(
        _yaml_text({**document, "environments": all_environments, "designs": {name: dict(design)}}), Path(matrix.path)
    )


def with_includes(text: str, path: Path, includes: Sequence[str]) -> Matrix:
    """Return the matrix of a text that includes these files instead of its own. Raises InputError as ``parse``."""
    return parse(_yaml_text({**parse_yaml(text, path).mapping(()), "include": list(includes)}), path)


def _yaml_text(document: Mapping[str, object]) -> str:
    return yaml.dump(dict(document), Dumper=_NoAliasDumper, sort_keys=False, width=110)

"""Dotted paths into the evidence: validation and lookup."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel

from envmatrix.evidence.evidence_models import Evidence
from envmatrix.evidence.model_base import NumberInText

#: Short names of the paths that levels check most often.
SHORT_PATHS = {
    "openmp": "openmp.library",
    "malloc": "malloc.library",
    "blas": "blas.library",
    "threads": "torch.threads",
}


class Kind(enum.Enum):
    """The kind of value at a path."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "true or false"
    LIST = "list"
    PART = "part"


class ClaimError(ValueError):
    """An invalid check. ``index`` is the position of the wrong value; None if the path is wrong."""

    def __init__(self, message: str, remedy: str, index: int | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.index = index


def kind_of(path: str) -> Kind:
    """Return the kind of value at ``path``. Raises ClaimError if evidence cannot have this path."""
    node: object = Evidence
    parts = SHORT_PATHS.get(path, path).split(".")
    for index, part in enumerate(parts):
        entered = _part_type(node, part)
        if entered is None:
            raise ClaimError(f"{path!r} is not a path of the evidence", _nearest_path(path))
        node = entered
        if get_origin(node) is dict and index + 1 < len(parts):
            return Kind.NUMBER  # any key and any value may follow
    kind = _type_kind(node)
    if kind is Kind.PART:
        longer_paths = [name for name in known_paths() if name.startswith(f"{path}.")]
        raise ClaimError(
            f"{path!r} is a part of the evidence, not a single value",
            f"name one value in it: {', '.join(longer_paths)}",
        )
    return kind


@cache
def known_paths() -> tuple[str, ...]:
    """Return all fixed paths, short names first."""
    return (*SHORT_PATHS, *_paths_below(Evidence, ""))


def _paths_below(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        field_type = _unwrap_optional(field.annotation)
        item_type = _unwrap_optional(get_args(field_type)[0]) if get_origin(field_type) is list else field_type
        if not _is_part(item_type):
            yield f"{prefix}{name}"
        if _is_part(item_type) and item_type is not Evidence:  # a rank's differences repeat the same paths
            yield from _paths_below(item_type, f"{prefix}{name}." if item_type is field_type else f"{prefix}{name}.0.")


def _is_part(node: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(node, type) and issubclass(node, BaseModel)


def _part_type(node: object, part: str) -> object:
    """Return the type of one component of a path; None if it does not exist."""
    if _is_part(node):
        field = node.model_fields.get(part)
        return None if field is None else _unwrap_optional(field.annotation, field.metadata)
    if get_origin(node) is dict:
        return _unwrap_optional(get_args(node)[1])
    if get_origin(node) is list and part.isdecimal():
        return _unwrap_optional(get_args(node)[0])
    return None


def _unwrap_optional(annotation: object, metadata: object = ()) -> object:
    """Return the type of an annotation without None; text that may be a number counts as float."""
    if isinstance(metadata, list) and any(isinstance(item, NumberInText) for item in metadata):
        return float
    if get_origin(annotation) in (Union, UnionType):
        return next(_unwrap_optional(choice) for choice in get_args(annotation) if choice is not type(None))
    if get_origin(annotation) is Annotated:
        base, *marks = get_args(annotation)
        return _unwrap_optional(base, marks)
    return annotation


_KINDS: Mapping[object, Kind] = {str: Kind.TEXT, int: Kind.NUMBER, float: Kind.NUMBER, bool: Kind.FLAG}


def _type_kind(node: object) -> Kind:
    if get_origin(node) is list:
        return Kind.PART if _is_part(get_args(node)[0]) else Kind.LIST
    return Kind.LIST if get_origin(node) is dict else _KINDS.get(node, Kind.PART)


def _nearest_path(path: str) -> str:
    matches = get_close_matches(path, known_paths(), n=1, cutoff=0.6)
    last_part = path.rpartition(".")[2]
    matches = matches or [known_path for known_path in known_paths() if known_path.rpartition(".")[2] == last_part]
    return f"did you mean {matches[0]!r}?" if matches else "list all paths: `envmatrix evidence ENV`"


def lookup(evidence: BaseModel | None, path: str) -> object:
    """Return the value at a dotted path, or None. The longest matching key wins, so keys may contain dots."""
    parts = SHORT_PATHS.get(path, path).split(".")
    value: object = evidence
    while parts:
        value, parts = _follow(value, parts)
    return value


def _follow(value: object, parts: list[str]) -> tuple[object, list[str]]:
    if isinstance(value, BaseModel):
        attribute = vars(value).get(parts[0])
        return (attribute if attribute is not None else (value.model_extra or {}).get(parts[0])), parts[1:]
    if isinstance(value, list) and parts[0].isdecimal() and int(parts[0]) < len(value):
        return value[int(parts[0])], parts[1:]
    if isinstance(value, dict):
        key_length = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in value), len(parts))
        return value.get(".".join(parts[:key_length])), parts[key_length:]
    return None, []

"""The JSON Schema of matrix.yaml, made from the same types that check it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from envmatrix import benchmark
from envmatrix.matrix.model import Design, Level, Metric, Slurm, SourceBuild

_WORDS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_OPTION_TYPES: Mapping[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "list-of-int": {"type": "array", "items": {"type": "integer"}},
}


def _entry(model: type[BaseModel], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Describe one entry as it is written: any scalar may be plain, any list of words may be one word."""
    properties: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if name in leave_out:
            continue
        written = _written(str(field.annotation))
        properties[name] = {**written, "description": field.description} if field.description else written
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _written(annotation: str) -> dict[str, Any]:
    if "Mapping" in annotation:
        inner = _WORDS if "tuple" in annotation else _SCALAR
        return {"type": "object", "additionalProperties": inner}
    if "tuple" in annotation:
        return _WORDS
    if "bool" in annotation:
        return {"type": "boolean"}
    return {"type": ["string", "number"]}


def _workload() -> dict[str, Any]:
    options = {
        name: {
            **_OPTION_TYPES[option.type],
            "description": option.help,
            **({"enum": list(option.choices)} if option.choices and not option.entry_points else {}),
        }
        for name, option in benchmark.options().items()
    }
    own = {
        "description": {"type": "string"},
        "command": {"type": "array", "items": _SCALAR},
        "metric": _entry(Metric),
        "files": {"type": "string"},
    }
    return {"type": "object", "additionalProperties": False, "properties": {**own, **options}}


def _design() -> dict[str, Any]:
    entry = _entry(Design, leave_out=("name", "slurm"))
    entry["properties"]["slurm"] = _entry(Slurm)
    return entry


def _level() -> dict[str, Any]:
    entry = _entry(Level)
    build = _entry(SourceBuild)
    build["properties"]["edit"]["additionalProperties"] = {"type": "object", "additionalProperties": _SCALAR}
    entry["properties"]["build"]["additionalProperties"] = build
    return entry


def _named(entry: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"anyOf": [entry, {"type": "null"}]}}


def json_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envmatrix matrix.yaml",
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "properties": {
            "version": {"const": 1},
            "factors": _named(_named(_level())),
            "environments": _named({"type": "object", "additionalProperties": _SCALAR}),
            "workloads": _named(_workload()),
            "designs": _named(_design()),
        },
    }

"""The JSON Schema of matrix.yaml, generated from the types that validate it."""

from __future__ import annotations

from typing import cast

from pydantic import BaseModel, JsonValue

from envmatrix.matrix.include import RENAMED_KEYS, VERSIONS
from envmatrix.matrix.model import Design, Level, Workload
from envmatrix.matrix.value_types import SCALAR, WORDS
from envmatrix.system import bench_options

Schema = dict[str, JsonValue]
#: Values may be quoted, as in the matrix stored with a run; a quoted value is parsed from its text.
_INTEGER = r"^\s*[-+]?[0-9][0-9_]*(\.0*)?\s*$"
_NUMBER = r"^\s*[-+]?[0-9_]*\.?[0-9_]+\.?([eE][-+]?[0-9]+)?\s*$"
_FLAG = "^([Tt]([Rr][Uu][Ee])?|[Ff]([Aa][Ll][Ss][Ee])?|[Yy]([Ee][Ss])?|[Nn][Oo]?|[Oo][Nn]|[Oo][Ff][Ff]|[01])$"
_NONE: Schema = {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^([Nn][Oo][Nn][Ee]|[Nn][Uu][Ll][Ll])$"}]}
_QUOTED: dict[str, Schema] = {
    "integer": {"type": ["integer", "string"], "pattern": _INTEGER},
    "number": {"type": ["number", "string"], "pattern": _NUMBER},
    "boolean": {"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}, {"type": "string", "pattern": _FLAG}]},
}
_TYPES = {"int": "integer", "float": "number", "bool": "boolean"}


def _entry_schema(model: type[BaseModel], parts: dict[str, JsonValue], leave_out: tuple[str, ...] = ()) -> Schema:
    """Return the schema of one entry as written; add the definitions it refers to to ``parts``."""
    model_schema = model.model_json_schema()
    definitions = model_schema.pop("$defs", {})
    parts |= {name: _without_titles(part) for name, part in definitions.items()}
    properties = {
        name: _allow_empty(part) if _holds_entries(part) else part
        for name, part in model_schema["properties"].items()
        if name not in leave_out
    }
    required = [name for name in model_schema.get("required", []) if name not in leave_out]
    schema = _without_titles({**model_schema, "properties": properties, "required": required})
    return schema if isinstance(schema, dict) else {}


def _holds_entries(part: Schema) -> bool:
    """Return whether an empty `KEY:` is valid and means no entries."""
    values_schema = part.get("additionalProperties")
    return "$ref" in part or (isinstance(values_schema, dict) and "$ref" in values_schema)


def _without_titles(node: JsonValue) -> JsonValue:
    """Remove titles, which repeat names, and empty defaults; accept quoted values."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    empty_values: tuple[JsonValue, ...] = (None, "", [], {})
    cleaned = {
        key: {name: _without_titles(part) for name, part in value.items()}
        if key == "properties" and isinstance(value, dict)
        else _without_titles(value)
        for key, value in node.items()
        if key != "title" and not (key in ("default", "required") and value in empty_values)
    }
    kind = cleaned.get("type")
    if isinstance(kind, str) and kind in _QUOTED:
        del cleaned["type"]
        cleaned |= _QUOTED[kind]
    return cleaned


def _option_schema(option: bench_options.Option) -> Schema:
    schema: Schema = {"type": SCALAR}
    if option.type == "list-of-int":
        schema = {"anyOf": [{"type": "array", "items": _QUOTED["integer"], "minItems": 1}, {"type": SCALAR}]}
    elif option.type in _TYPES:
        schema = _QUOTED[_TYPES[option.type]]
    if option.choices and not option.entry_points:
        schema = {"enum": list(option.choices)}
    bounds = (("minimum", option.minimum), ("maximum", option.maximum))
    if option.type in ("int", "float"):
        schema = {**schema, **{name: bound for name, bound in bounds if bound is not None}}
    if option.default is None:
        return {"anyOf": [schema, _NONE], "description": option.help}
    return {**schema, "description": option.help, "default": cast("JsonValue", option.default)}


def _workload_schema(parts: dict[str, JsonValue]) -> Schema:
    entry = _entry_schema(Workload, parts, leave_out=("name", "options"))
    properties = entry["properties"]
    assert isinstance(properties, dict)
    command_schema: Schema = {
        "metric": {"$ref": "#/$defs/MetricSource"},
        "check": {"anyOf": [{"$ref": "#/$defs/Check"}, properties["check"]]},
        "defaults": {"type": SCALAR, "description": _DEFAULTS},
    }
    options: Schema = {name: _option_schema(option) for name, option in bench_options.options().items()}
    return {**entry, "properties": {**properties, **command_schema, **options}}


_DEFAULTS = "name of an entry of `defaults`, which gives the keys that the workload does not set"


def _allow_empty(schema: JsonValue) -> Schema:
    """Return the schema with null allowed."""
    return {"anyOf": [schema, {"type": "null"}]}


def _mapping_schema(entry: Schema) -> Schema:
    return {"type": "object", "additionalProperties": entry}


def _with_old_keys(design: Schema) -> Schema:
    """Return the schema of a design that also accepts the keys of version 1."""
    properties = design["properties"]
    assert isinstance(properties, dict)
    old: Schema = {key: {"allOf": [properties[word]], "deprecated": True} for key, word in RENAMED_KEYS.items()}
    return {**design, "properties": {**properties, **old}}


def json_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12)."""
    parts: dict[str, JsonValue] = {}
    level = _allow_empty(_entry_schema(Level, parts))
    parts["SourceBuild"] = _allow_empty(parts["SourceBuild"])
    design = _entry_schema(Design, parts, leave_out=("name",))
    parts["Workload"] = _workload_schema(parts)
    workload: Schema = {"$ref": "#/$defs/Workload"}
    sections: dict[str, Schema] = {
        "include": {
            **WORDS,
            "description": "envmatrix:NAME is packaged with envmatrix; other paths are relative to this file",
        },
        "factors": _mapping_schema(_mapping_schema(level)),
        "environments": _mapping_schema(_allow_empty(_mapping_schema({"type": SCALAR}))),
        "defaults": _mapping_schema(_allow_empty({**workload, "not": {"required": ["defaults"]}})),
        "workloads": _mapping_schema(_allow_empty(workload)),
        "designs": _mapping_schema(_with_old_keys(design)),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envmatrix matrix.yaml",
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "properties": {
            "version": {"enum": [*map(int, VERSIONS), *VERSIONS]},
            **{name: _allow_empty(section) for name, section in sections.items()},
        },
        "$defs": parts,
    }

"""The JSON Schema of matrix.yaml, derived from the types that check it."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from envmatrix import benchmark
from envmatrix.matrix.include import VERSIONS
from envmatrix.matrix.model import Design, Level, Workload
from envmatrix.matrix.types import SCALAR, WORDS

Schema = dict[str, JsonValue]
_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}


def _entry(model: type[BaseModel], parts: dict[str, JsonValue], leave_out: tuple[str, ...] = ()) -> Schema:
    """Return the schema of one entry as it is written; what it refers to is added to ``parts``."""
    body = model.model_json_schema()
    inner = body.pop("$defs", {})
    parts |= {name: _plain(part) for name, part in inner.items()}
    properties = {name: part for name, part in body["properties"].items() if name not in leave_out}
    required = [name for name in body.get("required", []) if name not in leave_out]
    plain = _plain({**body, "properties": properties, "required": required})
    return plain if isinstance(plain, dict) else {}


def _plain(node: JsonValue) -> JsonValue:
    """Leave out the titles, which only repeat names, and defaults that say nothing."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    nothing: tuple[JsonValue, ...] = (None, "", [], {})
    return {
        key: {name: _plain(part) for name, part in value.items()}
        if key == "properties" and isinstance(value, dict)
        else _plain(value)
        for key, value in node.items()
        if key != "title" and not (key in ("default", "required") and value in nothing)
    }


def _option(option: benchmark.Option) -> Schema:
    schema: Schema = {"type": _TYPES.get(option.type, "array"), "description": option.help}
    if option.type == "list-of-int":
        schema = {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}
    if option.choices and not option.entry_points:
        schema["enum"] = list(option.choices)
    for name, bound in (("minimum", option.minimum), ("maximum", option.maximum)):
        if bound is not None and option.type in ("int", "float"):
            schema[name] = bound
    if option.default is None:
        return {"anyOf": [schema, {"type": "null"}], "description": option.help}
    return {**schema, "description": option.help, "default": _json(option.default)}


def _json(value: benchmark.OptionValue) -> JsonValue:
    return [*value] if isinstance(value, list) else value


def _workload(parts: dict[str, JsonValue]) -> Schema:
    entry = _entry(Workload, parts, leave_out=("name", "options"))
    own = entry["properties"]
    options: Schema = {name: _option(option) for name, option in benchmark.options().items()}
    assert isinstance(own, dict)
    return {**entry, "properties": {**own, "defaults": {"type": "string", "description": _DEFAULTS}, **options}}


_DEFAULTS = "name of an entry of `defaults`, whose keys count where the workload does not write them"


def _named(entry: Schema) -> Schema:
    return {"type": "object", "additionalProperties": {"anyOf": [entry, {"type": "null"}]}}


def json_schema() -> Schema:
    """Return the schema (draft 2020-12)."""
    parts: dict[str, JsonValue] = {}
    level = _entry(Level, parts)
    design = _entry(Design, parts, leave_out=("name",))
    parts["Workload"] = _workload(parts)
    workload: Schema = {"$ref": "#/$defs/Workload"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envmatrix matrix.yaml",
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "properties": {
            "version": {"enum": [int(version) for version in VERSIONS]},
            "include": {
                **WORDS,
                "description": "envmatrix:NAME comes with envmatrix, others lie beside this file",
            },
            "factors": _named(_named(level)),
            "environments": _named({"type": "object", "additionalProperties": {"type": SCALAR}}),
            "defaults": _named({**workload, "not": {"required": ["defaults"]}}),
            "workloads": _named(workload),
            "designs": _named(design),
        },
        "$defs": parts,
    }

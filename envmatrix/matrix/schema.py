"""The JSON Schema of matrix.yaml, derived from the types that check it."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from envmatrix.matrix.include import OLD_WORDS, VERSIONS
from envmatrix.matrix.model import Design, Level, Workload
from envmatrix.matrix.types import SCALAR, WORDS
from envmatrix.system import bench_options

Schema = dict[str, JsonValue]
#: A value may be quoted, as the matrix that a run keeps is: then it is a string whose text is read.
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


def _entry(model: type[BaseModel], parts: dict[str, JsonValue], leave_out: tuple[str, ...] = ()) -> Schema:
    """Return the schema of one entry as it is written; what it refers to is added to ``parts``."""
    body = model.model_json_schema()
    inner = body.pop("$defs", {})
    parts |= {name: _plain(part) for name, part in inner.items()}
    properties = {
        name: _or_nothing(part) if _holds_entries(part) else part
        for name, part in body["properties"].items()
        if name not in leave_out
    }
    required = [name for name in body.get("required", []) if name not in leave_out]
    plain = _plain({**body, "properties": properties, "required": required})
    return plain if isinstance(plain, dict) else {}


def _holds_entries(part: Schema) -> bool:
    """Whether `KEY:` with nothing behind it has no entries, and is no mistake."""
    inner = part.get("additionalProperties")
    return "$ref" in part or (isinstance(inner, dict) and "$ref" in inner)


def _plain(node: JsonValue) -> JsonValue:
    """Leave out titles, which only repeat names, and defaults that say nothing; let values be quoted."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    nothing: tuple[JsonValue, ...] = (None, "", [], {})
    kept = {
        key: {name: _plain(part) for name, part in value.items()}
        if key == "properties" and isinstance(value, dict)
        else _plain(value)
        for key, value in node.items()
        if key != "title" and not (key in ("default", "required") and value in nothing)
    }
    kind = kept.get("type")
    return _quoted(kind, kept) if isinstance(kind, str) and kind in _QUOTED else kept


def _quoted(kind: str, schema: Schema) -> Schema:
    """Return the schema of a number, or of true and false, that may be quoted too."""
    return {**{key: value for key, value in schema.items() if key != "type"}, **_QUOTED[kind]}


def _option(option: bench_options.Option) -> Schema:
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
    return {**schema, "description": option.help, "default": _json(option.default)}


def _json(value: bench_options.OptionValue) -> JsonValue:
    return [*value] if isinstance(value, list) else value


def _workload(parts: dict[str, JsonValue]) -> Schema:
    entry = _entry(Workload, parts, leave_out=("name", "options"))
    own = entry["properties"]
    assert isinstance(own, dict)
    written: Schema = {
        "metric": {"$ref": "#/$defs/MetricSource"},
        "check": {"anyOf": [{"$ref": "#/$defs/Check"}, own["check"]]},
        "defaults": {"type": SCALAR, "description": _DEFAULTS},
    }
    options: Schema = {name: _option(option) for name, option in bench_options.options().items()}
    return {**entry, "properties": {**own, **written, **options}}


_DEFAULTS = "name of an entry of `defaults`, whose keys count where the workload does not write them"


def _or_nothing(schema: JsonValue) -> Schema:
    """Return the schema of what may be left empty."""
    return {"anyOf": [schema, {"type": "null"}]}


def _named(entry: Schema) -> Schema:
    return {"type": "object", "additionalProperties": entry}


def _with_old_words(design: Schema) -> Schema:
    """Return the schema of a design that may have the words of version 1."""
    now = design["properties"]
    assert isinstance(now, dict)
    old: Schema = {old: {"allOf": [now[word]], "deprecated": True} for old, word in OLD_WORDS.items()}
    return {**design, "properties": {**now, **old}}


def json_schema() -> Schema:
    """Return the schema (draft 2020-12)."""
    parts: dict[str, JsonValue] = {}
    level = _or_nothing(_entry(Level, parts))
    parts["SourceBuild"] = _or_nothing(parts["SourceBuild"])
    design = _entry(Design, parts, leave_out=("name",))
    parts["Workload"] = _workload(parts)
    workload: Schema = {"$ref": "#/$defs/Workload"}
    sections: dict[str, Schema] = {
        "include": {**WORDS, "description": "envmatrix:NAME comes with envmatrix, others lie beside this file"},
        "factors": _named(_named(level)),
        "environments": _named(_or_nothing(_named({"type": SCALAR}))),
        "defaults": _named(_or_nothing({**workload, "not": {"required": ["defaults"]}})),
        "workloads": _named(_or_nothing(workload)),
        "designs": _named(_with_old_words(design)),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envmatrix matrix.yaml",
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "properties": {
            "version": {"enum": [*map(int, VERSIONS), *VERSIONS]},
            **{name: _or_nothing(section) for name, section in sections.items()},
        },
        "$defs": parts,
    }

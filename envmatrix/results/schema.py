"""JSON Schemas of the files of a run, generated from the types that read them."""

from __future__ import annotations

from pydantic import JsonValue, TypeAdapter

from envmatrix.results.run_model import Change, Run
from envmatrix.results.trial import Trial

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, JsonValue]:
    """Return the schema of run.json; its ``$defs`` include lines of history.jsonl and trials.jsonl."""
    _, schemas = TypeAdapter.json_schemas(
        [
            ("run", "validation", TypeAdapter(Run)),
            ("history", "validation", TypeAdapter(Change)),
            ("trial", "validation", TypeAdapter(Trial)),
        ],
        ref_template="#/$defs/{model}",
    )
    definitions: dict[str, JsonValue] = schemas["$defs"]
    return {"$schema": _DIALECT, "title": "envmatrix run.json", "$ref": "#/$defs/Run", "$defs": definitions}

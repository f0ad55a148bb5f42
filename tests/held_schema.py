"""Every matrix that a test parses is held against the published schema: what `check` accepts, the schema accepts."""

from __future__ import annotations

from functools import cache

import jsonschema
import yaml

from envmatrix.matrix import parse
from envmatrix.matrix.schema import json_schema


@cache
def validator() -> jsonschema.Draft202012Validator:
    """Return what judges by the schema that the types give."""
    return jsonschema.Draft202012Validator(json_schema())


@cache
def refusal(text: str) -> str:
    """Say where and why the schema refuses the text of a matrix, '' if it accepts it."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:  # a tag of YAML that the parser of positions passes over
        return ""
    error = jsonschema.exceptions.best_match(validator().iter_errors(data))
    return f"{error.json_path}: {error.message}" if error else ""


def hold() -> None:
    """Have every matrix that is parsed from now on fail the test that parses it, if the schema refuses it."""
    read = parse._Parser.matrix

    def matrix(reader: parse._Parser) -> parse.Matrix | None:
        made = read(reader)
        for source in reader.gathered.files if made else ():
            assert not refusal(source.text), f"check accepts this, the schema does not: {refusal(source.text)}"
        return made

    parse._Parser.matrix = matrix  # type: ignore[method-assign]

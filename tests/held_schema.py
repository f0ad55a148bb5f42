"""Check every matrix that a test parses against the published schema: it must accept what `check` accepts."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import yaml

from envmatrix.matrix import parse
from envmatrix.matrix.schema import json_schema

if TYPE_CHECKING:
    import jsonschema


@cache
def validator() -> jsonschema.Draft202012Validator:
    """Return a validator for the schema that is generated from the types."""
    import jsonschema  # takes seconds of CPU time, and few test files parse a matrix

    return jsonschema.Draft202012Validator(json_schema())


@cache
def refusal(text: str) -> str:
    """Return where and why the schema refuses the text of a matrix, or '' if it accepts it."""
    from jsonschema.exceptions import best_match

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:  # a YAML tag that the position parser ignores
        return ""
    error = best_match(validator().iter_errors(data))
    return f"{error.json_path}: {error.message}" if error else ""


def hold() -> None:
    """Make every test fail that parses a matrix which the schema refuses."""
    read = parse._Parser.matrix

    def matrix(reader: parse._Parser) -> parse.Matrix | None:
        made = read(reader)
        for source in reader.gathered.files if made else ():
            assert not refusal(source.text), f"check accepts this, the schema does not: {refusal(source.text)}"
        return made

    parse._Parser.matrix = matrix  # type: ignore[method-assign]

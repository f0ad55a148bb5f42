"""Value types of matrix.yaml, their JSON Schemas, and the base class of its models."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, JsonValue, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError

from envmatrix.durations_and_sizes import parse_bytes, parse_duration, parse_tolerance, percent_as_fraction

#: The type of errors made by ``about``; the error's context names the key.
OF_KEY = "of_key"
Item = TypeVar("Item")


def _word_as_list(value: object) -> object:
    """Wrap a single string in a tuple; return other values unchanged."""
    return (value,) if isinstance(value, str) else value


def check_printable(value: str) -> str:
    """Reject control characters, including newlines."""
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("newlines and other control characters are not allowed: engines pass them differently")
    return value


def check_match(pattern: str, value: str, complaint: str) -> str:
    """Return a value that a pattern matches as a whole. Raises ValueError: the value and the complaint."""
    if not re.fullmatch(pattern, value):
        raise ValueError(f"{value!r} {complaint}")
    return value


def matching(pattern: str, complaint: str) -> AfterValidator:
    """Return the validator of text that a pattern matches as a whole."""
    return AfterValidator(lambda value: check_match(pattern, value, complaint))


def about(key: str, message: str) -> PydanticCustomError:
    """Return a validation error of an entry that is reported at one of its keys."""
    return PydanticCustomError(OF_KEY, "{said}", {"key": key, "said": message})


def attached_key(problem: ErrorDetails) -> tuple[str, ...]:
    """Return the key given to ``about`` as the end of a path; () for any other error."""
    return (str(problem["ctx"]["key"]),) if problem["type"] == OF_KEY else ()


#: Types by YAML's own rules: an editor reads `python: 3.11` as a number.
SCALAR: list[JsonValue] = ["string", "number", "boolean"]
AS_SCALAR = WithJsonSchema({"type": SCALAR})
WORDS: dict[str, JsonValue] = {"anyOf": [{"type": SCALAR}, {"type": "array", "items": {"type": SCALAR}}]}
AS_WORDS = WithJsonSchema(WORDS)
SOME_WORDS = WithJsonSchema({"anyOf": [{"type": SCALAR}, {"type": "array", "items": {"type": SCALAR}, "minItems": 1}]})


def as_text(pattern: str) -> WithJsonSchema:
    """Return the schema of a string that matches a pattern."""
    return WithJsonSchema({"type": "string", "pattern": pattern})


def as_quantity(pattern: str, **bounds: JsonValue) -> WithJsonSchema:
    """Return the schema of a quantity: a string that matches a pattern, or a number within ``bounds``."""
    return WithJsonSchema({"type": ["string", "number"], "pattern": pattern, **bounds})


_FRACTION_PATTERN = r"^\s*(0*[0-9]{0,2}(\.[0-9]*)?\s*%|0*(\.[0-9]*)?|[0-9.]+[eE]-[0-9]+)\s*$"
_DURATION_PATTERN = r"^(\s*[0-9]+(\.[0-9]+)?\s*(ms|s|min|m|h)?)+\s*$"
_SIZE_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([KMGTkmgt][Ii]?[Bb]?|[Bb])?\s*$"
Text = Annotated[str, AfterValidator(check_printable), AS_SCALAR]
#: A list in which a single word may stand for a list of one.
ListOf = Annotated[tuple[Item, ...], BeforeValidator(_word_as_list), AS_WORDS]
VariableName = Annotated[
    str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "is not a valid variable name (letters, digits, underscore)")
]
Percent = Annotated[
    float, BeforeValidator(percent_as_fraction), as_quantity(_FRACTION_PATTERN, exclusiveMinimum=0, exclusiveMaximum=1)
]
Tolerance = Annotated[
    float, BeforeValidator(parse_tolerance), as_quantity(_FRACTION_PATTERN, minimum=0, exclusiveMaximum=1)
]
Seconds = Annotated[float, BeforeValidator(parse_duration), as_quantity(_DURATION_PATTERN, exclusiveMinimum=0)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), as_quantity(_SIZE_PATTERN, minimum=1)]


class Frozen(BaseModel):
    """Base of immutable models; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

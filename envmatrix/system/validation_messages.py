"""Convert pydantic's validation messages to wording for users of matrix.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "is not a known key",
    "string_type": "must be text",
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "must contain `name: ...` entries"
    ),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
}


def validation_message(problem: ErrorDetails) -> str:
    """Return the message on an invalid value, without its location."""
    kind = problem["type"]
    if kind in _MESSAGES:
        return _MESSAGES[kind]
    if kind == "too_short":
        minimum = problem.get("ctx", {}).get("min_length", 1)
        return "must not be empty" if minimum == 1 else f"must contain at least {minimum}"
    message = problem["msg"].removeprefix("Value error, ")
    if message.startswith("Input should "):
        return "must " + message.removeprefix("Input should ").replace("greater than or equal to", "at least")
    return message

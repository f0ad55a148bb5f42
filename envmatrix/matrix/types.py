"""Values as people write them in matrix.yaml, and the base of what is made of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, JsonValue, WithJsonSchema

from envmatrix.units import parse_percent, parse_tolerance


def no_control(value: str) -> str:
    """Refuse what would end a line, or steer a terminal."""
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        msg = "newlines and other control characters cannot be passed alike by every engine"
        raise ValueError(msg)
    return value


#: As YAML's own rules read them: `python: 3.11` is a number to an editor.
SCALAR: list[JsonValue] = ["string", "number", "boolean"]
AS_SCALAR = WithJsonSchema({"type": SCALAR})
AS_QUANTITY = WithJsonSchema({"type": ["string", "number"]})

Text = Annotated[str, AfterValidator(no_control), AS_SCALAR]
Percent = Annotated[float, BeforeValidator(parse_percent), AS_QUANTITY]
Tolerance = Annotated[float, BeforeValidator(parse_tolerance), AS_QUANTITY]


class Frozen(BaseModel):
    """What is read once and never changed; unknown keys are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

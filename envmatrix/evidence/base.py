"""What every part of the evidence is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StrictBool, StrictFloat, StrictInt, StrictStr


class NumberInText:
    """Marks a text that may be a number, so that a claim may compare it (``GOMP_SPINCOUNT`` is one, or INFINITY)."""


Text = StrictStr | None
NumberText = Annotated[StrictStr, NumberInText()] | None
Integer = StrictInt | None
Float = StrictFloat | None
Flag = StrictBool | None
Cpus = list[StrictInt] | None
Texts = list[StrictStr] | None
Settings = dict[StrictStr, StrictStr] | None


class Part(BaseModel):
    """A part of a record: frozen, and it keeps the keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="allow")

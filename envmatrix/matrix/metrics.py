"""Numbers that a user's own program reports: how fast it was, and what shows that it did its work."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, model_validator

from envmatrix.matrix.metric_label import plain_name, words_before
from envmatrix.matrix.types import Frozen, Text, Tolerance, as_text


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        msg = f"{pattern!r} is no regular expression: {error}"
        raise ValueError(msg) from None
    return pattern


def _has_a_group(pattern: str) -> str:
    if re.compile(_compiles(pattern)).groups < 1:
        msg = f"{pattern!r} has no group: put ( ) around the number"
        raise ValueError(msg)
    return pattern


def _names_file_and_key(value: str) -> str:
    file, colon, key = value.partition(":")
    if not (file and colon and key):
        msg = f"{value!r} must be FILE:dotted.key"
        raise ValueError(msg)
    return value


AnyPattern = Annotated[Text, AfterValidator(_compiles)]
Pattern = Annotated[Text, AfterValidator(_has_a_group), as_text(r"\(.*\)")]
FileAndKey = Annotated[Text, AfterValidator(_names_file_and_key), as_text(".:.")]


def _one_of(*names: str) -> ConfigDict:
    """Have the schema want one of these keys, as the types do."""
    wanted: list[JsonValue] = [{"required": [name]} for name in names]
    return ConfigDict(json_schema_extra={"anyOf": wanted})


class Reported(Frozen):
    """A number in a program's output, or in a JSON file that it writes."""

    regex: Pattern | None = Field(None, description="the first group of its last match is the number")
    json_file: FileAndKey | None = Field(None, description="a JSON file the program writes, as FILE:dotted.path")

    @property
    def called(self) -> str:
        """What the program itself calls the number; '' where that cannot be told."""
        keys = [part for part in (self.json_file or "").partition(":")[2].split(".") if not part.isdecimal()]
        return words_before(self.regex) if self.regex else plain_name(keys[-1]) if keys else ""


class MetricSource(Reported):
    """Where a user's own program says how fast it was."""

    model_config = _one_of("regex", "json_file", "wall", "steps")

    wall: bool = Field(False, description="the program's wall time in seconds")
    steps: AnyPattern | None = Field(None, description="steps a second: each line of output that matches ends a step")
    warmup: int = Field(1, ge=1, description="with steps: how many come before the first that counts")
    better: Literal["higher", "lower"] = "higher"
    unit: Text = Field("", description="what the number is counted in; s and B are shown as times and sizes")

    @model_validator(mode="after")
    def _says_one_place(self) -> MetricSource:
        if sum((self.regex is not None, self.json_file is not None, self.wall, self.steps is not None)) != 1:
            msg = "write one of regex, json_file, wall and steps"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _counts_steps(self) -> MetricSource:
        if self.steps is None and "warmup" in self.model_fields_set:
            msg = "warmup belongs to steps: nothing else is timed step by step"
            raise ValueError(msg)
        if self.steps is not None and (self.better != "higher" or self.unit):
            msg = "steps are counted a second, and more of them are better: leave out better and unit"
            raise ValueError(msg)
        return self


WALL_TIME = MetricSource.model_validate({"wall": True, "better": "lower"})


class Check(Reported):
    """A number that must not depend on the environment if the work was the same."""

    model_config = _one_of("regex", "json_file")

    tolerance: Tolerance = Field(description="by how much of the reference's number it may differ, such as 5%; 0: not")
    name: Text = Field("", description="what reports call it; none: its regex or key")

    @model_validator(mode="after")
    def _says_one_place(self) -> Check:
        if (self.regex is None) == (self.json_file is None):
            msg = "write one of regex and json_file"
            raise ValueError(msg)
        return self

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name or self.regex or (self.json_file or "").partition(":")[2]

"""Models for the numbers that a user's program reports: its speed, and values that verify its work."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, model_validator

from envmatrix.matrix.value_types import Frozen, Text, Tolerance, as_text

_MAX_LENGTH = 40
_NAME = re.compile(r"[\w ./()%+-]+")
#: One element of a pattern: an escape, a class, a non-capturing group, the first group, or one character.
_PATTERN_ELEMENT = re.compile(
    r"""(?P<flags>\(\?[aiLmsux]+\)) | \\(?P<escaped>.) | (?P<class>\[\^?\]?[^\]]*\]) | \(\?:(?P<group>[^()]*)\)
    | (?P<number>\() | (?P<often>[*+?]\??|\{[0-9,]*\}\??) | (?P<edge>\^) | (?P<any>[.|$)]) | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
#: Separators between a label and its number: `[:=]`, `(?:[:=]|is)`, a space, `[^\\w\\n]`.
_SEPARATOR = re.compile(r"\[\^\\w\\n\]|(?:[\s:=|\[\]\\-]|is|\\s)*")
#: Marks a wildcard in the words of a pattern.
_ANYTHING = "\0"


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from None
    return pattern


def _check_pattern_group(pattern: str) -> str:
    if re.compile(_check_pattern(pattern)).groups < 1:
        raise ValueError(f"{pattern!r} has no group: put ( ) around the number")
    return pattern


def _check_file_and_key(value: str) -> str:
    file, colon, key = value.partition(":")
    if not (file and colon and key):
        raise ValueError(f"{value!r} must be FILE:dotted.key")
    return value


AnyPattern = Annotated[Text, AfterValidator(_check_pattern)]
Pattern = Annotated[Text, AfterValidator(_check_pattern_group), as_text(r"\(.*\)")]
FileAndKey = Annotated[Text, AfterValidator(_check_file_and_key), as_text(".:.")]


def _require_one_key(*names: str) -> ConfigDict:
    """Require one of these keys in the JSON Schema, as the model validators do."""
    alternatives: list[JsonValue] = [{"required": [name]} for name in names]
    return ConfigDict(json_schema_extra={"anyOf": alternatives})


class ReportedNumber(Frozen):
    """A number in a program's output, or in a JSON file that it writes."""

    #: Keys, exactly one of which says where the number is.
    SOURCES: ClassVar[tuple[str, ...]] = ("regex", "json_file")

    regex: Pattern | None = Field(
        None, description="regular expression; the first group of the last match is the number"
    )
    json_file: FileAndKey | None = Field(None, description="a JSON file that the program writes, as FILE:dotted.path")

    @model_validator(mode="after")
    def _check_one_source(self) -> ReportedNumber:
        if sum(getattr(self, name) not in (None, False) for name in self.SOURCES) != 1:
            raise ValueError(f"write exactly one of {', '.join(self.SOURCES[:-1])} and {self.SOURCES[-1]}")
        return self

    @property
    def label_in_output(self) -> str:
        """The program's own name for the number; '' if it cannot be derived."""
        keys = [part for part in (self.json_file or "").partition(":")[2].split(".") if not part.isdecimal()]
        return words_before_group(self.regex) if self.regex else name_or_empty_if_unsafe(keys[-1]) if keys else ""


class MetricSource(ReportedNumber):
    """Source of the number that measures the speed of a user's program."""

    SOURCES: ClassVar[tuple[str, ...]] = ("regex", "json_file", "wall", "steps")
    model_config = _require_one_key(*SOURCES)

    wall: bool = Field(False, description="the program's wall time in seconds")
    steps: AnyPattern | None = Field(None, description="steps per second: each matching output line ends one step")
    warmup: int = Field(1, ge=1, description="with steps: number of steps to skip before timing")
    better: Literal["higher", "lower"] = "higher"
    unit: Text = Field("", description="unit of the number; s and B are shown as times and sizes")

    @model_validator(mode="after")
    def _check_steps(self) -> MetricSource:
        if self.steps is None and "warmup" in self.model_fields_set:
            raise ValueError("`warmup` needs `steps`: no other metric is timed step by step")
        if self.steps is not None and (self.better != "higher" or self.unit):
            raise ValueError("`steps` is always steps per second, higher is better: remove `better` and `unit`")
        return self


WALL_TIME = MetricSource.model_validate({"wall": True, "better": "lower"})


class Check(ReportedNumber):
    """A number that must agree between environments, within a tolerance, if the work was the same."""

    model_config = _require_one_key(*ReportedNumber.SOURCES)

    tolerance: Tolerance = Field(description="allowed difference from the reference's number, such as 5%; default: 0")
    name: Text = Field("", description="name in reports; default: its regex or key")

    @property
    def label(self) -> str:
        """The name shown in reports."""
        return self.name or self.regex or (self.json_file or "").partition(":")[2]


def words_before_group(pattern: str) -> str:
    """Return the literal words right before a pattern's first group; '' if they are not fixed."""
    label = ""
    for part in _PATTERN_ELEMENT.finditer(pattern):
        kind, text = part.lastgroup or "plain", part[0]
        if kind == "number":
            return _trailing_words(label)
        if kind == "any" and text == "|":
            return ""
        if kind in ("class", "group"):
            label += " " if _SEPARATOR.fullmatch(part["group"] or part["class"]) else _ANYTHING
        elif kind in ("any", "escaped"):
            label += _escape_text(part["escaped"]) if kind == "escaped" else f"{_ANYTHING} "
        elif kind == "plain":
            label += text
    return ""


def _escape_text(letter: str) -> str:
    if letter in "sbt":
        return " "
    return _ANYTHING if letter.isalnum() else letter


def _trailing_words(text: str) -> str:
    """Return the words at the end of a text. After a wildcard, drop the partial first word."""
    _, wildcard, words = text.rpartition(_ANYTHING)
    words = re.sub(r"^\w+", "", words) if wildcard else words
    return name_or_empty_if_unsafe(re.sub(r"^[\W_]+|[^\w)%]+$", "", words))


def name_or_empty_if_unsafe(text: str) -> str:
    """Return a text as a name that is safe in every report; '' if it cannot be one."""
    name = " ".join(text.split())
    return name if len(name) <= _MAX_LENGTH and _NAME.fullmatch(name) and re.search(r"[^\W\d_]", name) else ""

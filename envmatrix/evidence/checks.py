"""Checks of an environment's settings (``claims:`` in matrix.yaml): parsed, and compared with the evidence."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from envmatrix.evidence.dotted_paths import ClaimError, Kind, kind_of, lookup
from envmatrix.evidence.evidence_models import Evidence

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "!=": operator.ne,
}
_EXACTLY = "="
_OPERATORS = (*_COMPARE, _EXACTLY)
_OPERATOR_AND_TEXT = re.compile(r"\s*([<>=!~]+)\s*(.*)", re.DOTALL)
#: Parts of the evidence that exist only after work: a single process compiles nothing and starts no ranks.
_PARTS_OF_WORK = ("inductor", "parallel")


@dataclass(frozen=True)
class AllowedValue:
    """One allowed value: an operator and its text; without an operator, ``*`` in the text matches anything."""

    operator: str
    text: str

    def __str__(self) -> str:
        return f"{self.operator} {self.text}" if self.operator else self.text

    def fits(self, found: object) -> bool:
        """Return whether the value that was found is allowed."""
        found_text = _as_text(found)
        if self.operator == _EXACTLY:
            return found_text == self.text
        if self.operator in _COMPARE:
            value, bound = _number(found_text), _number(self.text)
            return value is not None and bound is not None and _COMPARE[self.operator](value, bound)
        # Only * is a wildcard: brackets (proclist=[0,1]) and question marks are literal.
        equal_number = isinstance(found, float) and _number(self.text) == found
        return equal_number or fnmatchcase(found_text, str(self).replace("[", "[[]").replace("?", "[?]"))


@dataclass(frozen=True)
class Claim:
    """A check: a path into the evidence, and the values allowed there."""

    path: str
    allowed: tuple[AllowedValue, ...]

    def __str__(self) -> str:
        return f"{self.path} is {' or '.join(map(str, self.allowed))}"

    def contradiction(self, evidence: Evidence) -> str:
        """Return one sentence on how the evidence contradicts the check; '' if it does not."""
        value = lookup(evidence, self.path)
        if value is None:
            return f"claims {self}, but its value could not be read at run time"
        return "" if self.fits(value) else f"claims {self}, but it was {_as_text(value)}"

    def fits(self, value: object) -> bool:
        """Return whether the value that was found is one of the allowed values."""
        return any(allowed.fits(value) for allowed in self.allowed)


def parse_claim(path: str, values: Sequence[str]) -> Claim:
    """Parse a check as written; ``check`` validates its path."""
    return Claim(path, tuple(map(_parse_allowed, values)))


def parse_claims(claims: Mapping[str, Sequence[str]]) -> tuple[Claim, ...]:
    """Parse checks as path -> allowed values."""
    return tuple(parse_claim(path, values) for path, values in claims.items())


#: Checks as stored in run.json: path -> allowed values.
Claims = Annotated[
    tuple[Claim, ...],
    BeforeValidator(lambda claims: parse_claims(claims) if isinstance(claims, Mapping) else claims),
    PlainSerializer(lambda claims: {claim.path: list(map(str, claim.allowed)) for claim in claims}),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}),
]


def check(claim: Claim) -> None:
    """Raise ClaimError if evidence cannot have this path, or a value cannot occur there.

    Fill templates first: ``> {physical_cores}`` is not a comparison with a number.
    """
    kind = kind_of(claim.path)
    if not claim.allowed:
        raise ClaimError(f"{claim.path}: the list of values is empty", "write the expected value, or '*' for any")
    path = claim.path
    for index, allowed in enumerate(claim.allowed):
        compares = allowed.operator in _COMPARE
        if allowed.operator and allowed.operator not in _OPERATORS:
            remedy = f"use one of {'  '.join(_OPERATORS)} ('= {allowed}' compares with that exact text)"
            raise ClaimError(f"{path}: unknown operator {allowed.operator!r}", remedy, index)
        if compares and _number(allowed.text) is None:
            remedy = f"write a number, as in '{allowed.operator} 2'"
            raise ClaimError(f"{path}: {allowed.text!r} is not a number", remedy, index)
        if compares and kind is not Kind.NUMBER:
            message = f"{path}: {str(allowed)!r} compares numbers, but {path} is {_ARTICLE[kind]}"
            raise ClaimError(message, "write the expected text; '*' matches any part of it", index)


_ARTICLE = {Kind.TEXT: "a text", Kind.FLAG: "true or false", Kind.LIST: "a list"}


def _parse_allowed(text: str) -> AllowedValue:
    match = _OPERATOR_AND_TEXT.fullmatch(text)
    return AllowedValue(match[1], match[2].strip()) if match else AllowedValue("", text)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_as_text, value))
    return str(value)


def contradictions(claims: Iterable[Claim], evidence: Evidence) -> list[str]:
    """Return one sentence for each check that the evidence contradicts; empty if all pass."""
    return [sentence for claim in claims if (sentence := claim.contradiction(evidence))]


def unverifiable_reason(claim: Claim, evidence: Evidence) -> str:
    """Return why the evidence of a single process cannot show what a check is about; '' if it can."""
    part = claim.path.partition(".")[0]
    if part in _PARTS_OF_WORK and getattr(evidence, part) is None:
        return "only a trial of `envmatrix bench` shows it"
    if evidence.source == "outside" and lookup(evidence, claim.path) is None:
        return "it is no Python, or ended by os._exit or a signal, so it could not be asked"
    return ""

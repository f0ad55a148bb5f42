"""Base class and value types of the evidence models."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, StrictBool, StrictFloat, StrictInt, StrictStr


class NumberInText:
    """Marks text that may be a number, so that checks can compare it (``GOMP_SPINCOUNT``: also INFINITY)."""


Text = StrictStr | None
NumberText = Annotated[StrictStr, NumberInText()] | None
Integer = StrictInt | None
Float = StrictFloat | None
Flag = StrictBool | None
Cpus = list[StrictInt] | None
Texts = list[StrictStr] | None
Settings = dict[StrictStr, StrictStr] | None


#: For how many calls ``once_for_each`` keeps the answer.
_MAX_ANSWERS = 512
P = ParamSpec("P")
T = TypeVar("T")


def once_for_each(function: Callable[P, T]) -> Callable[P, T]:
    """Keep a function's answers for the very same objects: parts that many trials share are looked at once.

    Parts cannot be hashed. The objects are kept with the answer, so that nothing else gets their identity.
    """
    answers: dict[tuple[int, ...], tuple[object, T]] = {}

    @wraps(function)
    def answer(*objects: P.args, **named: P.kwargs) -> T:
        key = tuple(map(id, (*objects, *named.values())))
        if key not in answers:
            if len(answers) >= _MAX_ANSWERS:
                answers.clear()
            answers[key] = ((objects, named), function(*objects, **named))
        return answers[key][1]

    return answer


class Part(BaseModel):
    """Base of a record's parts: immutable, and keeps unknown keys."""

    model_config = ConfigDict(frozen=True, extra="allow")

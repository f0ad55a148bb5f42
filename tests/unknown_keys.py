"""Search for keys of a record that its models do not know."""

from collections.abc import Iterator

from pydantic import BaseModel


def unknown_keys(part: object, before: str = "") -> Iterator[str]:
    """Yield the paths of these keys."""
    if isinstance(part, BaseModel):
        yield from (before + key for key in part.model_extra or {})
        for name in type(part).model_fields:
            yield from unknown_keys(getattr(part, name), f"{before}{name}.")
    elif isinstance(part, list):
        for item in part:
            yield from unknown_keys(item, before)

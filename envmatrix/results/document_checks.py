"""Checks of the schema number of a stored document, and readable messages for validation errors."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from envmatrix.errors import InputError, StoreError, Where
from envmatrix.system.validation_messages import validation_message

Document = TypeVar("Document", bound=BaseModel)


def require_exact_schema(body: object, file: Path, newest: int, line: int = 1) -> dict[str, object]:
    """Return ``body`` as an object; raise StoreError if it is none, has no schema number or not the ``newest`` one."""
    where = Where(file, line, 1)
    schema = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(body, dict) or isinstance(schema, bool) or not isinstance(schema, int):
        raise StoreError(
            "no schema number: envmatrix did not write this file", where=where, remedy="restore it from a copy"
        )
    if schema > newest:
        raise StoreError(
            f"schema {schema} is newer than this version of envmatrix can read ({newest})",
            where=where,
            remedy="upgrade envmatrix; the file was not changed",
        )
    if schema < newest:
        raise StoreError(
            f"schema {schema} is older than this version of envmatrix can read ({newest})",
            where=where,
            remedy="read it with the version of envmatrix that wrote it; the file was not changed",
        )
    return body


def validated(model: type[Document], body: object, message: str, where: Where, remedy: str, text: str = "") -> Document:
    """Return a stored document as a ``model``. Raises StoreError with the first mistake at the {} of ``message``.

    ``where`` is the document; with its ``text``, the error names the line and column of the mistake.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        path, mistake = first_mistake(error)
        where = locate_value(text, where.file, path) if text else where
        raise StoreError(message.format(mistake), where=where, remedy=remedy) from error


def first_mistake(error: ValidationError) -> tuple[tuple[str | int, ...], str]:
    """Return the path of a document's first validation error and its message, which begins with the path."""
    problem = error.errors(include_url=False, include_input=False)[0]
    path, message = tuple(part for part in problem["loc"] if part != "[key]"), validation_message(problem)
    joined = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return path, f"{joined.removeprefix('.')}: {message}" if path else message


def locate_value(text: str, file: Path, path: tuple[str | int, ...]) -> Where:
    """Return line and column of a value in a JSON document, or of its nearest parent (JSON is YAML)."""
    from envmatrix.matrix.yaml_positions import parse_yaml

    try:
        return parse_yaml(text, file).where(path)
    except InputError:
        return Where(file)

"""Remembering what was prepared, so that a no-change prepare costs milliseconds."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from envmatrix.build.cache import digest_of
from envmatrix.build.debian_suites import bootstrap_argv
from envmatrix.build.definitions import recipe_digest
from envmatrix.build.file_listing import OF_ENGINES, listing_argv
from envmatrix.build.paths import Places
from envmatrix.engines.base import Prepared
from envmatrix.plan.environment import Image, Library


def inputs_digest(places: Places, image: Image, libraries: tuple[Library, ...], *more: object) -> str:
    """Return a digest of all that a prepared image follows from, the texts of its locks among it."""
    pattern = re.compile(rf"({re.escape(image.name)}|libraries|system)\..*\.txt\Z")
    names = sorted(places.locks.iterdir()) if places.locks.is_dir() else []
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in names if pattern.match(path.name)]
    how = (recipe_digest(wheels=True), bootstrap_argv("", Path(), ""), listing_argv("", "/", OF_ENGINES))
    return digest_of(asdict(image), [asdict(item) for item in libraries if item.is_for(image)], texts, how, more)


def recorded(prepared: Prepared) -> dict[str, object]:
    """Return what ``prepared_from`` reads again, as plain values."""
    return {**asdict(prepared), "loader": None if prepared.loader is None else sorted(prepared.loader)}


def prepared_from(body: object) -> Prepared | None:
    """Read a build record; None when there is none, or one of another version."""
    if not isinstance(body, dict):
        return None
    try:
        loader = body.pop("loader")
        return Prepared(**body, loader=None if loader is None else frozenset(loader))
    except (TypeError, KeyError):
        return None

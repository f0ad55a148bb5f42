"""The base that every engine can start from without a registry: Debian's own bootstrap."""

from __future__ import annotations

from pathlib import Path

from envmatrix.images.context import Base, container_suite
from envmatrix.images.places import Places
from envmatrix.images.suites import Suite, base_digest, status_of
from envmatrix.plan.environment import Image
from envmatrix.say import Say


def bootstrapped_base(image: Image, places: Places, say: Say) -> tuple[Base, Path]:
    """Return a base made by mmdebstrap (bit-identical on every machine with the same mirror), and its tar."""
    suite = Suite(container_suite(image), places.cache)
    tar = suite.bootstrap(say)
    digest = base_digest(tar)
    reference = f"envmatrix/base:{suite.name}-{digest[7:19]}"
    return Base(suite.name, reference, digest, status_of(tar), f"debian {suite.name} by mmdebstrap"), tar

"""The base that every engine can start from without a registry: Debian's own bootstrap."""

from __future__ import annotations

from pathlib import Path

from envmatrix.build.context import Base, container_suite
from envmatrix.build.debian_suites import Suite, base_digest, status_of
from envmatrix.build.paths import Places
from envmatrix.plan.environment import Image
from envmatrix.system.progress import ProgressCallback


def bootstrapped_base(image: Image, places: Places, progress: ProgressCallback) -> tuple[Base, Path]:
    """Return a base made by mmdebstrap (bit-identical on every machine with the same mirror), and its tar."""
    suite = Suite(container_suite(image), places.cache)
    tar = suite.bootstrap(progress)
    digest = base_digest(tar)
    reference = f"envmatrix/base:{suite.name}-{digest[7:19]}"
    return Base(suite.name, reference, digest, status_of(tar), f"debian {suite.name} by mmdebstrap"), tar

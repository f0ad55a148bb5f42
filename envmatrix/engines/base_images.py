"""Make a Debian base that every engine can use without a registry."""

from __future__ import annotations

from pathlib import Path

from envmatrix.build.context import BaseImage, container_suite
from envmatrix.build.debian_suites import Suite, base_digest, dpkg_status
from envmatrix.build.paths import BuildPaths
from envmatrix.plan.environment import Image
from envmatrix.system.progress import ProgressCallback


def bootstrapped_base(image: Image, places: BuildPaths, progress: ProgressCallback) -> tuple[BaseImage, Path]:
    """Return a base made by mmdebstrap (bit-identical on all machines with the same mirror), and its tar."""
    suite = Suite(container_suite(image), places.cache)
    tar = suite.bootstrap(progress)
    digest = base_digest(tar)
    reference = f"envmatrix/base:{suite.name}-{digest[7:19]}"
    return BaseImage(suite.name, reference, digest, dpkg_status(tar), f"debian {suite.name} by mmdebstrap"), tar

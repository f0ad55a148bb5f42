"""Settings of all tests."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The machine may be busy: an example that takes long says nothing about the code. CI must not depend on luck either.
settings.register_profile("envmatrix", deadline=None, derandomize=True)
settings.load_profile("envmatrix")

# Unit tests of bench/ that compute something need torch; it comes from the venv that envmatrix itself builds.
if site_packages := os.environ.get("BENCH_SITE_PACKAGES"):
    sys.path.append(site_packages)

# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Folders whose tests share an engine's images, Slurm's nodes or the lock of those who measure: one test at a time.
_ONE_AT_A_TIME = ("cluster", "engines", "local")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep such a folder in one of the lanes of ``--dist=loadgroup``."""
    for item in items:
        folder = Path(item.path).relative_to(Path(__file__).parent).parts[0]
        if folder in _ONE_AT_A_TIME:
            item.add_marker(pytest.mark.xdist_group(folder))

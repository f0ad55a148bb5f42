"""Settings of all tests."""

import os
import signal
import sys
from functools import cache

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from envmatrix.engines.catalog import find_engine
from tests import held_schema

# The machine may be busy: an example that takes long says nothing about the code. CI must not depend on luck either.
settings.register_profile("envmatrix", deadline=None, derandomize=True)
settings.load_profile("envmatrix")

held_schema.hold()

# Unit tests of bench/ that compute something need torch; it comes from the venv that envmatrix itself builds.
if site_packages := os.environ.get("BENCH_SITE_PACKAGES"):
    sys.path.append(site_packages)

# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Folders whose tests share an engine's images, Slurm's nodes or the lock of those who measure: one test at a time.
_ONE_AT_A_TIME = ("cluster", "engines", "faults", "local")


class _Lanes(LoadScopeScheduling):
    """Gives a worker such a folder whole, and any other test as soon as a worker is free."""

    def _split_scope(self, nodeid):
        folder = nodeid.removeprefix("tests/").partition("/")[0]
        return folder if folder in _ONE_AT_A_TIME else nodeid


def pytest_xdist_make_scheduler(config, log):
    """Tests in lanes, for --dist=loadscope (xdist's own groups, ``loadgroup``, have no effect under pytest 9.2)."""
    return _Lanes(config, log) if config.getvalue("dist") == "loadscope" else None


@cache
def why_not(engine):
    """Say why an engine cannot be used here, None where it can."""
    return find_engine(engine).unavailable()


def pytest_runtest_setup(item):
    """Skip a test of an engine that is not here, before anything is made for it (``demand`` says when that fails)."""
    needed = [engine for engine in ("docker", "apptainer") if item.get_closest_marker(engine)]
    if needed:
        from tests.engines.conftest import demand

        for engine in needed:
            demand(why_not(engine))


@pytest.fixture
def one_thread():
    """Threads that wait for each other spin, beside tests that want the CPU."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

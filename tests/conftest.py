"""Settings of all tests: Hypothesis, torch, signals, and the order of tests under xdist."""

import os
import signal
import sys
from functools import cache

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from envmatrix.engines.catalog import find_engine
from tests import held_schema

# On a busy machine slow examples are not the code's fault (no deadline). CI must be deterministic.
settings.register_profile("envmatrix", deadline=None, derandomize=True)
settings.load_profile("envmatrix")

held_schema.hold()

# Unit tests of bench/ that compute something need torch; it comes from the venv that envmatrix itself builds.
if site_packages := os.environ.get("BENCH_SITE_PACKAGES"):
    sys.path.append(site_packages)

# A shell's background job ignores Ctrl-C, and its children inherit that: tests that interrupt need the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Folders whose tests share an engine's images, Slurm's nodes or the measuring lock: they run one test at a time.
_ONE_AT_A_TIME = ("cluster", "engines", "faults", "local")


class _Lanes(LoadScopeScheduling):
    """Scheduler that gives each folder of ``_ONE_AT_A_TIME`` to one worker, and other tests to any free worker."""

    def _split_scope(self, nodeid):
        folder = nodeid.removeprefix("tests/").partition("/")[0]
        return folder if folder in _ONE_AT_A_TIME else nodeid


def pytest_xdist_make_scheduler(config, log):
    """Use ``_Lanes`` for --dist=loadscope (xdist's own groups, ``loadgroup``, have no effect under pytest 9.2)."""
    return _Lanes(config, log) if config.getvalue("dist") == "loadscope" else None


@cache
def why_not(engine):
    """Return why an engine cannot be used here, or None."""
    return find_engine(engine).unavailable()


def pytest_runtest_setup(item):
    """Skip a test without its engine before its fixtures are made; ``demand`` fails it if CI requires engines."""
    needed = [engine for engine in ("docker", "apptainer") if item.get_closest_marker(engine)]
    if needed:
        from tests.engines.conftest import demand

        for engine in needed:
            demand(why_not(engine))


@pytest.fixture
def one_thread():
    """Run torch with one thread: several would spin while they wait, at the expense of other tests."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

"""Fixtures of unit tests."""

import pytest

from envmatrix.trials import orphans


@pytest.fixture
def no_orphans(monkeypatch):
    """Hide processes that a parallel test left: a run of simulated trials would end them and report it."""
    monkeypatch.setattr(orphans, "end_processes", lambda: 0)

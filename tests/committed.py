"""Paths of the runs that are committed in the repository, for tests that read real output."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
REFERENCES = sorted(file.parent for file in RESULTS.glob("reference-*/run.json"))

"""Runs that lie in the repository, for tests that read what was really written."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
REFERENCES = sorted(file.parent for file in RESULTS.glob("reference-*/run.json"))
#: The first block of `envmatrix bench models` as version 0.1.0 wrote them: schema 1, one trial after the other.
SCHEMA_1 = Path(__file__).parent / "unit" / "data" / "schema-1"

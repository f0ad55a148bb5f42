"""A read-only look at the machine: what disturbs a benchmark, and what is missing, each with its remedy."""

from envmatrix.preflight.checks import Finding, examine

__all__ = ["Finding", "examine"]

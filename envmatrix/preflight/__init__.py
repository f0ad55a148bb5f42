"""A read-only look at the machine: what disturbs a benchmark, and what is missing, each with its remedy."""

from envmatrix.preflight.checks import examine
from envmatrix.preflight.finding import Finding

__all__ = ["Finding", "examine"]

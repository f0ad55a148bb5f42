"""A read-only look at the machine: what disturbs a benchmark, and what is missing, each with its remedy."""

from envmatrix.doctor.checks import examine
from envmatrix.doctor.finding import Finding

__all__ = ["Finding", "examine"]

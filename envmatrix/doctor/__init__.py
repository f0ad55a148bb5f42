"""Read-only checks of the machine: what disturbs a benchmark and what is missing, each with a remedy."""

from envmatrix.doctor.checks import examine
from envmatrix.doctor.finding import Finding

__all__ = ["Finding", "examine"]

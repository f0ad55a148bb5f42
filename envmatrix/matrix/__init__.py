"""Data model of matrix.yaml: loading, validation, and immutable typed values."""

from envmatrix.matrix.model import Design, Factor, Level, Matrix, Slurm, Workload
from envmatrix.matrix.parse import load

__all__ = ["Design", "Factor", "Level", "Matrix", "Slurm", "Workload", "load"]

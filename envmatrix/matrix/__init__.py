"""Data model of matrix.yaml: loading, validation, and immutable typed values."""

from envmatrix.matrix.model import Design, Factor, Level, Matrix, Workload
from envmatrix.matrix.parse import load
from envmatrix.matrix.slurm import Slurm

__all__ = ["Design", "Factor", "Level", "Matrix", "Slurm", "Workload", "load"]

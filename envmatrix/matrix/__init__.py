"""matrix.yaml: read once, at the edge, into frozen typed values."""

from envmatrix.matrix.model import Design, Factor, Level, Matrix, Slurm, Workload
from envmatrix.matrix.parse import load

__all__ = ["Design", "Factor", "Level", "Matrix", "Slurm", "Workload", "load"]

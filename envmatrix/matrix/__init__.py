"""matrix.yaml: read once, at the edge, into frozen typed values."""

from envmatrix.matrix.model import Design, Factor, Level, Matrix, Workload
from envmatrix.matrix.parse import load
from envmatrix.matrix.slurm import Slurm

__all__ = ["Design", "Factor", "Level", "Matrix", "Slurm", "Workload", "load"]

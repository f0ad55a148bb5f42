"""The version of envmatrix, its one place."""

__version__ = "0.2.0"

"""The version of envmatrix, defined only here."""

__version__ = "0.2.0"

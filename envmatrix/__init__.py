"""How much faster does a PyTorch program get when only its environment changes? envmatrix measures it."""

__version__ = "0.1.0"

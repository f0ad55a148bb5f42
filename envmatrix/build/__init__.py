"""Building images: lock files, wheelhouse, library folders, and venvs built offline."""

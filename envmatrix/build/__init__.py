"""Images: locks, the wheelhouse filled from them, library folders, and the venvs built offline from both."""

"""Python packages: resolved, downloaded, built and installed into venvs."""

"""Debian packages and suites, fetched on the host without root."""

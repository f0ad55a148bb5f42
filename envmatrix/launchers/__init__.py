"""Launchers: where trials run. A new launcher is one file and one line in the catalog."""

"""Launchers: where trials run (a new one is a file and a line in the catalog), and doctor's checks of this machine."""

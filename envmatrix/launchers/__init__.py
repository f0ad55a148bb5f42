"""Launchers: where trials run. To add a launcher, add one file and one line in the catalog."""

"""The tables of reports: what is in their rows and columns."""

"""The figures of reports, generated as SVG text."""

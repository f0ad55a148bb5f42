"""The formats of reports: terminal, HTML pages, Markdown, and files for other programs."""

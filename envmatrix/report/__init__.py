"""Reports of a run: terminal, Markdown, HTML, JSON and other formats, all made from one Summary."""

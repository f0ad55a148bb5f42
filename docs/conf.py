"""Sphinx configuration of the documentation (`nox -s docs`), which also generates pages from the code."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generated import write_pages

from envmatrix.version import __version__

project = "envmatrix"
release = __version__
author = "the envmatrix authors"
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"envmatrix {release}"
html_show_copyright = False
html_copy_source = False
smartquotes = False  # keep the two hyphens of options
templates_path = ["_templates"]
exclude_patterns = ["_site", "_templates", "generated.py", "covered.py"]
nitpicky = True
suppress_warnings = ["myst.header"]  # a page may begin below heading level 1
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
linkcheck_anchors = False

write_pages(Path(__file__).parent / "reference")

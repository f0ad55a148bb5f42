"""Convert our SVG figures to one-page PDF files for papers, with svglib.

svglib, an optional extra, knows neither CSS variables nor the page's style: both become attributes first. Text stays
text. The file has no date, so equal figures give equal files.
"""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping

from envmatrix.errors import InputError
from envmatrix.report.figures.svg import figure_style, light_colours


def to_pdf(svg: str) -> bytes:
    """Return a figure (one of our svg elements) as a PDF file. Raises InputError if svglib is not installed."""
    try:
        from reportlab.graphics import renderPDF
        from reportlab.pdfgen.canvas import Canvas
        from svglib.svglib import svg2rlg
    except ImportError as error:
        raise InputError(
            f"svglib, which writes PDF, cannot be used here ({error})",
            remedy=f"{sys.executable} -m pip install svglib, or --output FILE.svg, which needs nothing",
        ) from error
    root = ET.fromstring(svg)  # noqa: S314 - made here, every text in it escaped
    rules = dict(re.findall(r"(\w+)\{([^}]*)\}", figure_style()))
    colours = light_colours()
    _style_as_attributes(
        root, rules, {f"--{name}": colour for name, colour in colours.items()} | {"--k": colours["ink"]}
    )
    drawing, out = svg2rlg(io.BytesIO(ET.tostring(root))), io.BytesIO()
    assert drawing is not None
    canvas = Canvas(out, (drawing.width, drawing.height), invariant=1)
    canvas.setTitle(root.findtext("{*}title", ""))
    renderPDF.draw(drawing, canvas, 0, 0)
    canvas.save()
    return out.getvalue()


def _style_as_attributes(element: ET.Element, rules: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Replace classes and variables, of an element and those in it, by attributes; a child inherits variables."""
    names = (element.tag.rpartition("}")[2], *element.attrib.pop("class", "").split())
    style = [*(rules.get(name, "") for name in names), element.attrib.pop("style", "")]
    for declaration in filter(None, ";".join(style).split(";")):
        name, _, written = declaration.partition(":")
        value = re.sub(r"var\((.*?)\)", lambda match: variables[match[1]], written)  # noqa: B023 - used at once
        if name.startswith("--"):
            variables = {**variables, name: value}
        elif name == "font":
            element.attrib |= {"font-size": value.split()[0], "font-family": "Helvetica"}
        else:
            element.set(name, "bold" if value == "600" else value)
    for child in element:
        _style_as_attributes(child, rules, variables)

"""Convert our SVG figures to one-page PDF files for papers, without any library.

PDF 1.4 (ISO 32000-1). Every reader has the font Helvetica; widths are from its metrics file (AFM). Text stays text. The
file has no date, so equal figures give equal files.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping

from envmatrix.report.figures.svg import light_colours

_SIZE = 12.0
_BASE = 0.75  # PDF uses points, SVG pixels of 1/96 inch
#: Helvetica's character widths from the space on, in thousandths of the font size.
_WIDTHS = (
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, *[556] * 10, 278, 278, 584, 584,
    584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667,
    611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222,
    500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
)  # fmt: skip
_OTHER = 556
_RESOURCES = "<< /Font << /F 5 0 R /B 6 0 R >> >>"
#: Control-point distance of a Bezier curve for a quarter circle.
_ROUND = 0.5523
#: Class -> (stroke colour, width, dashes); "k" is the colour of the enclosing group.
_STROKES: Mapping[str, tuple[str, float, str]] = {
    "grid": ("line", 1.0, ""),
    "one": ("ink", 1.2, ""),
    "thin": ("k", 1.0, ""),
    "broken": ("bad", 1.6, ""),
    "bar": ("k", 2.4, ""),
    "since": ("soft", 1.0, "4 3"),
}
_VERDICTS: Mapping[str, str] = {"faster": "good", "slower": "bad", "same": "calm", "undecided": "open"}


def to_pdf(svg: str) -> str:
    """Return a figure (one of our svg elements) as a PDF file, in pure ASCII."""
    root = ET.fromstring(svg)  # noqa: S314 - made here, every text in it escaped
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    operators = "\n".join((f"{_BASE} 0 0 {-_BASE} 0 {height * _BASE:.2f} cm", *_draw(root, "ink")))
    box = f"[0 0 {width * _BASE:.2f} {height * _BASE:.2f}]"
    bodies = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox {box} /Contents 4 0 R /Resources {_RESOURCES} >>",
        f"<< /Length {len(operators)} >>\nstream\n{operators}\nendstream",
        _font("Helvetica"),
        _font("Helvetica-Bold"),
        f"<< /Title ({_escaped(_title(root))}) /Producer (envmatrix) >>",
    ]
    text, places = "%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(len(text))
        text += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(bodies) + 1
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R /Info {size - 1} 0 R >>\nstartxref\n{len(text)}\n%%EOF\n"
    return f"{text}xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}"


def _font(name: str) -> str:
    return f"<< /Type /Font /Subtype /Type1 /BaseFont /{name} /Encoding /WinAnsiEncoding >>"


def _title(root: ET.Element) -> str:
    return next((child.text or "" for child in root if _tag(child) == "title"), "")


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _draw(element: ET.Element, colour: str) -> Iterator[str]:
    """Yield the operators of an element and its children; ``colour`` is that of the group."""
    for child in element:
        kinds = child.get("class", "").split()
        colours = (_VERDICTS.get(kind, kind) for kind in kinds if kind in _VERDICTS or re.fullmatch(r"k\d+", kind))
        child_colour = next(colours, colour)
        tag = _tag(child)
        if tag == "g":
            yield from _draw(child, child_colour)
        elif tag == "text":
            yield _text(child, kinds)
        elif tag not in ("title", "desc", "style"):
            yield _shape(child, tag, kinds, child_colour)


def _shape(element: ET.Element, tag: str, kinds: list[str], colour: str) -> str:
    path = _PATHS[tag](element)
    if "band" in kinds:
        return f"{_colour('band')} rg {path} f"
    if "mark" in kinds:
        return f"{_colour(colour)} rg {_colour('paper')} RG 0.6 w {path} b"
    name, width, dashes = next((_STROKES[kind] for kind in kinds if kind in _STROKES), _STROKES["thin"])
    width = (
        float(width_match[1])
        if (width_match := re.search(r"stroke-width:([\d.]+)", element.get("style", "")))
        else width
    )
    end = 1 if "bar" in kinds else 0
    return f"q {_colour(colour if name == 'k' else name)} RG {width} w {end} J [{dashes}] 0 d {path} S Q"


def _text(element: ET.Element, kinds: list[str]) -> str:
    words = element.text or ""
    wide = sum(_WIDTHS[ord(c) - 32] if 32 <= ord(c) < 127 else _OTHER for c in words) * _SIZE / 1000
    x = float(element.attrib["x"]) - (wide if "end" in kinds else wide / 2 if "mid" in kinds else 0.0)
    font, colour = "B" if "bold" in kinds else "F", _colour("soft" if "soft" in kinds else "ink")
    place = f"1 0 0 -1 {x:.2f} {float(element.attrib['y']):.2f} Tm"
    return f"BT {colour} rg /{font} {_SIZE} Tf {place} ({_escaped(words)}) Tj ET"


def _escaped(words: str) -> str:
    """Return text as a PDF string; characters that the font lacks become question marks."""
    codes = words.encode("cp1252", "replace")
    return "".join(chr(c) if 32 <= c < 127 and c not in b"()\\" else f"\\{c:03o}" for c in codes)


def _colour(name: str) -> str:
    hex_code = light_colours()[name]
    digits = hex_code[1:] if len(hex_code) == 7 else "".join(2 * digit for digit in hex_code[1:])
    return " ".join(f"{int(digits[at : at + 2], 16) / 255:.3f}" for at in (0, 2, 4))


def _numbers(element: ET.Element, *names: str) -> list[float]:
    return [float(element.attrib[name]) for name in names]


def _line(element: ET.Element) -> str:
    x1, y1, x2, y2 = _numbers(element, "x1", "y1", "x2", "y2")
    return f"{x1} {y1} m {x2} {y2} l"


def _rectangle(element: ET.Element) -> str:
    x, y, width, height = _numbers(element, "x", "y", "width", "height")
    return f"{x} {y} {width} {height} re"


def _circle(element: ET.Element) -> str:
    x, y, r = _numbers(element, "cx", "cy", "r")
    c = r * _ROUND
    curves = (
        (x + r, y + c, x + c, y + r, x, y + r),
        (x - c, y + r, x - r, y + c, x - r, y),
        (x - r, y - c, x - c, y - r, x, y - r),
        (x + c, y - r, x + r, y - c, x + r, y),
    )
    return f"{x + r:.2f} {y} m " + " ".join(" ".join(f"{value:.2f}" for value in one) + " c" for one in curves)


def _points(element: ET.Element) -> str:
    first, *rest = (point.replace(",", " ") for point in element.attrib["points"].split())
    return " ".join((f"{first} m", *(f"{point} l" for point in rest)))


def _dashes(element: ET.Element) -> str:
    """Return a path of many short horizontal lines, the only kind of path in our figures."""
    dashes = re.findall(r"M(\S+) ([^\sh]+)h(\d+)", element.attrib["d"])
    return " ".join(f"{x} {y} m {float(x) + float(long)} {y} l" for x, y, long in dashes)


_PATHS = {
    "line": _line,
    "rect": _rectangle,
    "circle": _circle,
    "polygon": _points,
    "polyline": _points,
    "path": _dashes,
}

"""Common parts of the figures: scales, colours, text. Figures are SVG text, generated without a library."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from envmatrix.report.formatting import svg_text

#: Number of classes k0..k11 in the style below; an environment has the same colour and mark in every figure.
COLOURS = 12
_LIGHT = (
    "#0b6bcb", "#c2410c", "#15803d", "#9333ea", "#b91c1c", "#0e7490", "#a16207", "#be185d", "#4d7c0f", "#4338ca",
    "#57534e", "#0f766e",
)  # fmt: skip
_DARK = (
    "#6cb6ff", "#fb923c", "#4ade80", "#c084fc", "#f87171", "#22d3ee", "#facc15", "#f472b6", "#a3e635", "#a5b4fc",
    "#d6d3d1", "#2dd4bf",
)  # fmt: skip
_INK = (
    "--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--paper:#fff;--band:#e8eef5;"
    "--good:#15803d;--bad:#b91c1c;--calm:#59636e;--open:#9a6700"
)
_INK_DARK = (
    "--ink:#e6edf3;--soft:#9aa5b1;--line:#3d444d;--paper:#0d1117;--band:#1d2733;"
    "--good:#4ade80;--bad:#f87171;--calm:#9aa5b1;--open:#e3b341"
)


def light_colours() -> dict[str, str]:
    """Return the light colours by name: 'ink', 'soft', ..., and 'k0' onwards."""
    colours = dict(rule.removeprefix("--").split(":") for rule in _INK.split(";"))
    return {**colours, **{f"k{index}": colour for index, colour in enumerate(_LIGHT)}}


def palette() -> str:
    """Return the style rules for the colours, light and dark (print is always light)."""
    light = _INK + "".join(f";--k{index}:{colour}" for index, colour in enumerate(_LIGHT))
    dark = _INK_DARK + "".join(f";--k{index}:{colour}" for index, colour in enumerate(_DARK))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def figure_style() -> str:
    """Return the style rules of the figures."""
    kinds = "".join(f".k{index}{{--k:var(--k{index})}}" for index in range(COLOURS))
    return (
        "svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .soft{fill:var(--soft)}"
        "svg .end{text-anchor:end}svg .mid{text-anchor:middle}svg .bold{font-weight:600}"
        "svg .grid{stroke:var(--line);stroke-width:1}svg .one{stroke:var(--ink);stroke-width:1.2}"
        "svg .band{fill:var(--band)}svg .mark{fill:var(--k);stroke:var(--paper);stroke-width:.6}"
        "svg .thin{stroke:var(--k);fill:none;stroke-width:1}svg .broken{stroke:var(--bad);stroke-width:1.6}"
        "svg .since{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 3}"
        ".faster{--k:var(--good)}.slower{--k:var(--bad)}.same{--k:var(--calm)}.undecided{--k:var(--open)}"
        "svg .bar{stroke:var(--k);stroke-width:2.4;stroke-linecap:round}" + kinds
    )


def text(x: float, y: float, words: object, kind: str = "", limit: int = 60) -> str:
    """Return a text element; ``words`` are escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{svg_text(words, limit)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a line element."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Return a filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="mark"/>'


def marker(x: float, y: float, shape: int, size: float = 4.5) -> str:
    """Return one of four shapes at a position, so that environments differ in more than colour."""
    if shape % 4 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" class="mark"/>'
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.3), (1.2, 1), (-1.2, 1)),
        3: ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    }[shape % 4]
    points = " ".join(f"{x + dx * size * 0.9:.1f},{y + dy * size * 0.9:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" class="mark"/>'


@dataclass(frozen=True)
class Scale:
    """Maps ``low``..``high`` of the data to ``start``..``end`` of the drawing, on a log axis if ``log``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of ``value``; values beyond the axis are put at its end."""
        low, high, value = (
            math.log(v) if self.log else v for v in (self.low, self.high, max(value, 1e-12) if self.log else value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round numbers between ``low`` and ``high``, at most ``most`` of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough), power * 10)
    first = math.ceil(low / step - 1e-9)
    return [round(step * index, 12) for index in range(first, first + most + 2) if step * index <= high * (1 + 1e-9)]


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Return round ratios between ``low`` and ``high`` for a log axis, always with 1."""
    if high / low < 4:
        return sorted({*ticks(low, high, most), *([1.0] if low <= 1 <= high else [])})
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    step = max(1, math.ceil(len(powers) / most))
    return [2.0**power for power in powers if low <= 2.0**power <= high and power % step == 0]


def x_grid(scale: Scale, values: Iterable[float], top: float, bottom: float, *, base: float, unit: float = 1.0) -> str:
    """Return a vertical line and its number for each of ``values`` (in units of ``unit``); that of ``base`` is dark."""
    lines = ((scale(value * unit), value) for value in values)
    return "".join(
        line(x, top, x, bottom, "one" if value == base else "grid") + text(x, bottom + 16, f"{value:.6g}", "mid soft")
        for x, value in lines
    )


def drawing(width: float, height: float, title: str, description: str, body: str, name: str) -> str:
    """Return the svg element; screen readers read its title and description."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-labelledby="{name}-t {name}-d" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{name}-t">{svg_text(title, 200)}</title>'
        f'<desc id="{name}-d">{svg_text(description, 1000)}</desc>'
        f"{body}</svg>"
    )


def standalone(svg: str) -> str:
    """Return a figure as a separate file with its own style, and a white background in print."""
    style = f"<style>{palette()}{figure_style()}svg{{background:var(--paper)}}</style>"
    start = svg.index(">") + 1
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg[:start]}{style}{svg[start:]}\n'

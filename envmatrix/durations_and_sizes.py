"""Parse and format percentages, durations and sizes."""

from __future__ import annotations

import math
import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?\s*")
_PRICE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*h")
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B)?\Z", re.IGNORECASE)


def percent_as_fraction(value: object) -> float:
    """Parse '3%' or '0.03' as 0.03; raise a ValueError unless it is above 0 % and below 100 %."""
    number = _fraction(value)
    if not 0 < number < 1:
        msg = f"{str(value).strip()!r} must lie between 0% and 100%"
        raise ValueError(msg)
    return number


def parse_tolerance(value: object) -> float:
    """Parse '5%', '0.05' or 0 as a fraction; raise a ValueError below 0 % and from 100 %."""
    number = _fraction(value)
    if not 0 <= number < 1:
        msg = f"{str(value).strip()!r} must be 0 or lie between 0% and 100%"
        raise ValueError(msg)
    return number


def _fraction(value: object) -> float:
    text = str(value).strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        msg = f"{text!r} is no percentage, such as 3%"
        raise ValueError(msg) from None


def parse_duration(value: object) -> float:
    """Parse 90, '90', '90s', '5m', '1.5h' or '9m30s' as seconds."""
    text = f"{value:f}" if isinstance(value, float) else str(value).strip()
    parts = _DURATION.findall(text) if not _DURATION.sub("", text) else []
    plain = len(parts) > 1 and any(not unit for _, unit in parts)  # '9 30' is ambiguous
    seconds = sum(float(number) * _SECONDS[unit or None] for number, unit in parts)
    if plain or not 0 < seconds < 2**53:
        msg = f"{value!r} is no duration, such as 30s, 5m, 9m30s or 2h"
        raise ValueError(msg)
    return seconds


def parse_price(value: str) -> float:
    """Parse '1.20/h' as 1.2; the number has no currency."""
    match = _PRICE.fullmatch(value.strip())
    price = float(match[1]) if match else 0.0
    if not 0 < price < 2**53:
        msg = f"{value!r} is no price per hour, such as 1.20/h"
        raise ValueError(msg)
    return price


def as_duration(seconds: float) -> str:
    """Format seconds so that ``parse_duration`` can read them, rounded up: 90s, 2m30s (to 10 s), 12m (to minutes)."""
    if seconds < 120:
        return f"{max(1, math.ceil(seconds))}s"
    if seconds < 600:
        minutes, rest_s = divmod(math.ceil(seconds / 10) * 10, 60)
        return f"{minutes}m{f'{rest_s}s' if rest_s else ''}"
    minutes = math.ceil(seconds / 60)
    return f"{minutes}m" if minutes < 120 else f"{minutes // 60}h{f'{minutes % 60}m' if minutes % 60 else ''}"


#: The longest run that is ever suggested (seconds, blocks); beyond that, the noise must be reduced first.
LONGEST_S, MOST_BLOCKS = 12 * 3600.0, 2000
#: Trials take so many times as long as the trial run: some environments are slower, and settings are read back.
TIME_MARGIN = 1.3
QUIET_FIRST = "make the machine quiet first (`envmatrix doctor`)"


def is_too_long_to_suggest(seconds: float, blocks: float = 0) -> bool:
    """Return whether a run would be longer than envmatrix ever suggests."""
    return seconds > LONGEST_S or blocks > MOST_BLOCKS


def as_hours(seconds: float) -> str:
    """Format a long time in hours or days: 40 hours, 12 days."""
    hours = seconds / 3600
    return f"{hours:.0f} hours" if hours < 96 else f"{hours / 24:,.0f} days"


def as_packages(number: int) -> str:
    """Return '1 package', '2 packages'."""
    return f"{number} package{'' if number == 1 else 's'}"


def parse_bytes(value: object) -> int:
    """Parse '512MiB', '8G' or '1000000' as bytes (K, M, G, T are powers of 1024)."""
    match = _BYTES.match(str(value).strip())
    unit = ((match[2] if match else None) or "B").upper()[0]
    size = float(match[1]) * 1024 ** "BKMGT".index(unit) if match else 0.0
    if not 1 <= size < 2**63:
        msg = f"{value!r} is no size, such as 512MiB or 8GiB"
        raise ValueError(msg)
    return int(size)

"""Where progress goes: whoever starts something long passes in who is told."""

from __future__ import annotations

from collections.abc import Callable

#: Takes one line of progress ("building torch-2.13.0 ...").
Say = Callable[[str], None]


def silent(_text: str) -> None:
    """Tell nobody."""

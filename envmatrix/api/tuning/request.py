"""Arguments of ``envmatrix tune`` that apply to designs and programs alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envmatrix.api.known_order import OrderAtlas
from envmatrix.api.places import PathLike


@dataclass(frozen=True)
class SearchRequest:
    """What is searched, for how long, and where it is stored; ``atlas`` gives the order of candidates."""

    budget: float | str | None = None
    factors: Sequence[str] | None = None
    name: str | None = None
    results: PathLike = "results"
    sampler: str = ""
    atlas: OrderAtlas | None = None

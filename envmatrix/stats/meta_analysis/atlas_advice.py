"""What an atlas predicts for one machine: no more than the spread between its machines allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from envmatrix.results.atlas import ProcessorFacts
from envmatrix.stats.meta_analysis.atlas import Atlas, AtlasRow


@dataclass(frozen=True)
class Prediction:
    """The speed-up ``ratio`` of an environment on a machine, and its interval ``low`` to ``high``.

    If it was ``measured`` on this machine, that is its own effect. Otherwise it is the average of ``machines`` with the
    prediction interval for another one, None below three. ``covered``: as in ``RandomEffects``.
    """

    environment: str
    workload: str
    engine: str
    metric: str
    reference: str
    changes: Mapping[str, tuple[str, str]]
    measured: bool
    ratio: float
    low: float | None
    high: float | None
    machines: int
    covered: int | None

    @property
    def is_faster(self) -> bool:
        """Return whether the whole interval is above 1."""
        return self.low is not None and self.low > 1.0

    @property
    def rank(self) -> tuple[float, ...]:
        """The key to sort by: intervals with the highest lower end first, then the environments without one."""
        return (0.0, -self.low) if self.low is not None else (1.0, -self.machines, -self.ratio)


@dataclass(frozen=True)
class Advice:
    """The predictions for a ``machine``, the best first, and the command that measures the best ones there.

    ``known``: the atlas has runs of this machine. ``unreadable`` tells of the files that cannot be used.
    """

    machine: ProcessorFacts
    known: bool
    predictions: tuple[Prediction, ...]
    next: str
    unreadable: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON document."""
        return {"schema": 1, **TypeAdapter(Advice).dump_python(self, mode="json")}


def predict(atlas: Atlas, machine: ProcessorFacts) -> tuple[Prediction, ...]:
    """Return what an atlas predicts of each of its environments on a machine, the best first."""
    return tuple(sorted((_predict(row, machine) for row in atlas.rows if row.machines), key=lambda one: one.rank))


def _predict(row: AtlasRow, machine: ProcessorFacts) -> Prediction:
    first, own = row.first, next((one.effect for one in row.machines if one.machine == machine), None)
    covered = row.general.covered if row.general else None
    low, high = (row.general.prediction if row.general else None) or (None, None)
    ratio = row.general.ratio if row.general else row.machines[0].effect.ratio
    if own:
        ratio, low, high = own.ratio, own.low, own.high
    return Prediction(
        environment=first.environment, workload=first.workload, engine=first.engine, metric=first.metric,
        reference=first.reference.partition(":")[0], changes=first.changes, measured=own is not None, ratio=ratio,
        low=low, high=high, machines=len(row.machines), covered=covered,
    )  # fmt: skip

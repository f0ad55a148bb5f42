"""Arms that took no turns beside arms that did, on one scale: each over its own reference, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Plan
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import Bools, families, logs_of, mean_copies, original

Floats = NDArray[np.float64]


def in_one_way(
    plan: Plan, measured: Measurements, primary: Mapping[str, Metric], slow: Bools
) -> tuple[Measurements, Bools]:
    """Return the primary numbers, and which trials are slow, as if all that is compared had taken turns.

    In each block the numbers of what took none are multiplied by their reference's in turns over that of its copy.
    Their ratios to their references stay, and they can be held against arms in turns.
    """
    table, marked = dict(measured.table), slow.copy()
    index = {name: row for row, name in enumerate(measured.arms)}
    known = families(plan)
    for family in known:
        turning = original(family.reference, plan)
        if turning == family.reference:
            continue
        copies = max((one.copies for one in known if one.reference == turning), key=len, default=(turning,))
        at, own = (
            [index[str(name)] for name in copies],
            [index[name] for name in (family.reference, *(arm.name for arm in family.arms))],
        )
        metric = primary[family.arms[0].workload].name
        logs = logs_of(table[metric])
        values = table[metric].copy()
        values[own] *= np.exp(mean_copies(logs[at]) - logs[own[0]])
        table[metric] = values
        if slow.size:
            marked[own] |= slow[[*at, own[0]]].any(axis=0)
    return replace(measured, table=table), marked

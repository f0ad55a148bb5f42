"""Common scale for uninterrupted and interleaved arms, using the reference of each, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Plan
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import Bools, families, interleaved_original, logs_of, mean_copies

Floats = NDArray[np.float64]


def rescale_to_interleaved(
    plan: Plan, measured: Measurements, primary: Mapping[str, Metric], slow: Bools
) -> tuple[Measurements, Bools]:
    """Return the primary numbers and the slow-trial mask as if all compared arms had been interleaved.

    In each block, numbers of uninterrupted arms are multiplied by the interleaved reference over its uninterrupted
    copy. Their ratios to their references are kept, so they can be compared with interleaved arms.
    """
    table, slow_marks = dict(measured.table), slow.copy()
    index = {name: row for row, name in enumerate(measured.arms)}
    plan_families = families(plan)
    for family in plan_families:
        interleaved_name = interleaved_original(family.reference, plan)
        if interleaved_name == family.reference:
            continue
        copies = max(
            (candidate.copies for candidate in plan_families if candidate.reference == interleaved_name),
            key=len,
            default=(interleaved_name,),
        )
        copy_rows, separate_rows = (
            [index[str(name)] for name in copies],
            [index[name] for name in (family.reference, *(arm.name for arm in family.arms))],
        )
        metric = primary[family.arms[0].workload].name
        logs = logs_of(table[metric])
        values = table[metric].copy()
        values[separate_rows] *= np.exp(mean_copies(logs[copy_rows]) - logs[separate_rows[0]])
        table[metric] = values
        if slow.size:
            slow_marks[separate_rows] |= slow[[*copy_rows, separate_rows[0]]].any(axis=0)
    return replace(measured, table=table), slow_marks

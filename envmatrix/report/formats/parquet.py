"""Parquet: one typed row per trial with units, for pandas, Polars, DuckDB or Spark.

pyarrow, which writes it, is an optional extra because it is larger than all other dependencies together.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envmatrix.errors import InputError
from envmatrix.report.catalog import BuiltIn
from envmatrix.report.summary import Summary
from envmatrix.stats.measurements import OUTCOMES, WORK_COLUMNS, Floats, Integers
from envmatrix.stats.metrics import METRICS, OWN_COLUMN_PREFIXES
from envmatrix.stats.step_account import COLUMNS
from envmatrix.system.printable import printable_text


def to_parquet(summary: Summary) -> bytes:
    """Return the file: every trial in the order they ran, failed ones too, with null for missing values.

    ``started`` is in seconds since 1970 (UTC). Metrics are in their own units; each column's metadata has the unit and
    which direction is better. Raises InputError if pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f"pyarrow, which writes Parquet, cannot be used here ({error})",
            remedy=f"{sys.executable} -m pip install pyarrow, or --as trials-csv, which needs nothing",
        ) from error
    named_columns = list(_columns(summary, pyarrow))
    file_metadata = {
        "envmatrix.run": printable_text(summary.run.name),
        "envmatrix.created": printable_text(summary.run.created),
    }
    schema = pyarrow.schema([field for field, _ in named_columns], metadata=file_metadata)
    out = io.BytesIO()
    arrays = [pyarrow.array(values, field.type, from_pandas=True) for field, values in named_columns]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), out)
    return out.getvalue()


def _columns(summary: Summary, arrow: Any) -> Iterator[tuple[Any, object]]:
    """Yield each column's pyarrow.Field and its values, NaN if missing."""
    measured = summary.measured
    trials, arms = measured.trials, [summary.plan.arms[index] for index in measured.trials.arm]
    for name in ("workload", "engine", "environment"):
        yield arrow.field(name, arrow.string()), [printable_text(getattr(arm, name)) for arm in arms]
    yield arrow.field("block", arrow.int64()), trials.block
    yield arrow.field("outcome", arrow.string()), [OUTCOMES[index] for index in trials.outcome]
    yield arrow.field("started", arrow.float64(), metadata={"unit": "s"}), trials.started
    block_index = np.searchsorted(measured.blocks, trials.block)
    ok = trials.outcome == OUTCOMES.index("ok")
    for name in (*METRICS, *WORK_COLUMNS, *(name for name in measured.table if name.startswith(OWN_COLUMN_PREFIXES))):
        metric = METRICS.get(name)
        column_metadata = {"unit": metric.unit, "better": metric.better} if metric else None
        values = _values(measured.table[name], trials.arm, block_index, ok)
        yield arrow.field(printable_text(name), arrow.float64(), metadata=column_metadata), values
    for name in COLUMNS:
        yield arrow.field(name, arrow.float64()), _values(measured.table[name], trials.arm, block_index, ok)


def _values(table: Floats, arm: Integers, block_index: Integers, ok: NDArray[np.bool_]) -> Floats:
    return np.where(ok, table[arm, block_index], np.nan) if arm.size else np.zeros(0)


#: Factory of the format, for the catalog.
parquet_report = partial(BuiltIn, lambda summary, _: to_parquet(summary), "parquet")

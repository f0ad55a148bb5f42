"""Optuna's samplers as proposers for the screen of a search; race and confirmation stay the same.

Optuna is an optional extra: it depends on a database library, which envmatrix's own model does not need.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from envmatrix.errors import InputError, suggestion
from envmatrix.search.candidate_selection import Bools

if TYPE_CHECKING:
    from envmatrix.search.space import Space

#: Values of ``--sampler`` and Optuna's classes.
SAMPLERS = {"tpe": "TPESampler", "nsga2": "NSGAIISampler", "random": "RandomSampler"}
#: Proposals requested per row: samplers do not know which cells are impossible.
_TRIES = 20


def check_sampler(name: str) -> None:
    """Raise an InputError if the sampler is unknown or Optuna is not installed."""
    if name not in SAMPLERS:
        raise InputError(f"--sampler: unknown sampler {name!r}", remedy=suggestion(name, SAMPLERS))
    _import_optuna()


def propose_rows(
    space: Space, row_gains: Sequence[tuple[int, float]], allowed: Bools, count: int, name: str, seed: Sequence[int]
) -> tuple[int, ...]:
    """Return up to ``count`` rows that a sampler proposes; equal arguments give equal rows.

    ``row_gains`` are the row and the log gain of each trial so far, NaN if it failed (see ``Batch.gains_by_trial``).
    """
    optuna = _import_optuna()
    number = int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
    study = optuna.create_study(direction="maximize", sampler=getattr(optuna.samplers, SAMPLERS[name])(seed=number))
    levels = {
        factor: optuna.distributions.CategoricalDistribution(tuple(range(size)))
        for factor, size in zip(space.factors, space.sizes, strict=True)
    }
    worst = min((gain for _, gain in row_gains if np.isfinite(gain)), default=0.0)
    for row, gain in row_gains:
        params = dict(zip(space.factors, space.codes[row].tolist(), strict=True))
        value = gain if np.isfinite(gain) else worst
        study.add_trial(optuna.trial.create_trial(params=params, distributions=levels, value=value))
    rows: dict[int, None] = {}
    for _ in range(_TRIES * count):
        if len(rows) == count:
            break
        trial = study.ask(levels)
        cell = np.array([trial.params[factor] for factor in space.factors], space.codes.dtype)
        proposed = space.row_of(cell)
        if proposed and allowed[proposed]:
            rows[proposed] = None
        study.tell(trial, worst)  # so that it proposes another cell next, also after an impossible one
    remaining = [int(row) for row in np.random.default_rng(number).permutation(np.flatnonzero(allowed)) if row]
    rows |= dict.fromkeys(remaining)  # fill up at random if it repeats the same few cells
    return tuple(rows)[:count]


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            f"--sampler needs Optuna, which cannot be imported ({error})",
            remedy=f"install it: {sys.executable} -m pip install optuna; or leave out --sampler: the built-in model "
            "needs nothing",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna

"""Retries of trials whose process never started: missing images are rebuilt, or the run stops."""

from __future__ import annotations

from dataclasses import replace

from envmatrix.errors import EngineError, EngineGoneError, InputError, NoTrialError, SkipEnvironmentError
from envmatrix.plan import Slot
from envmatrix.results import Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.execution import REPEATS, STOPPED_REASON, make_unstarted_trial, run_trial
from envmatrix.trials.experiment_setup import Experiment, find_image_builder
from envmatrix.trials.images import check_images_unchanged, libraries_for_images


def run_with_rebuild(experiment: Experiment, slot: Slot, progress: ProgressCallback) -> Trial:
    """Run one slot. If its process does not start, rebuild what is missing and try once more.

    A trial that was paused from outside runs again, at most ``REPEATS`` times. A second failed start, with engine and
    image available, counts as the environment's own failure. Raises EngineGoneError, without a record of the slot, if
    the engine or an image is gone for good.
    """
    for repeated in range(REPEATS):
        trial = _run_or_rebuild(experiment, slot, progress)
        if trial.reason != STOPPED_REASON:
            return replace(trial, repeated=repeated)
        progress(f"{slot.trial} was paused while it ran: running it again")
    return replace(_run_or_rebuild(experiment, slot, progress), repeated=REPEATS)


def _run_or_rebuild(experiment: Experiment, slot: Slot, progress: ProgressCallback) -> Trial:
    try:
        return run_trial(experiment, slot)
    except NoTrialError as error:
        rebuild_image(experiment, slot, error, progress)
    try:
        return run_trial(experiment, slot)
    except NoTrialError as error:
        rebuild_image(experiment, slot, error, progress)
        return make_unstarted_trial(slot, error)


def rebuild_image(experiment: Experiment, slot: Slot, error: NoTrialError, progress: ProgressCallback) -> None:
    """Rebuild a missing image with identical files. Raises EngineGoneError if the engine or image is unavailable."""
    engine, environment = experiment.engines[slot.arm.engine], experiment.run.environments[slot.arm.runs]
    image, key = environment.image, (environment.image_key, engine.name)
    reason = engine.unavailable()
    if reason:
        problem = f"engine {engine.name} is no longer available: {reason.splitlines()[0]}"
        raise _engine_gone_error(experiment, problem) from error
    try:
        if engine.holds(experiment.prepared[key]):
            return
        progress(f"image {image.name} is gone from {engine.name}: rebuilding it")
        maker = find_image_builder(experiment, environment)
        libraries = libraries_for_images(engine, maker.libraries, experiment.run.environments.values())
        rebuilt = maker.engines[engine.name].prepare(image, libraries, progress)
        check_images_unchanged(experiment.run, {key: rebuilt})
        is_present = engine.holds(rebuilt)
    except (EngineError, SkipEnvironmentError, InputError) as why:
        raise _engine_gone_error(experiment, f"image {image.name} is gone from {engine.name}: {why.message}") from error
    if not is_present:
        raise _engine_gone_error(
            experiment, f"image {image.name} is gone from {engine.name}, and rebuilding it did not help"
        )
    experiment.prepared[key] = rebuilt


def _engine_gone_error(experiment: Experiment, problem: str) -> EngineGoneError:
    return EngineGoneError(
        f"{problem}; the run was stopped", remedy=f"fix this, then `envmatrix resume {experiment.run.name}`"
    )

"""Split a block into groups of trials that run together, by schedule, eligibility for interleaving, and memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from envmatrix.block.available_memory import free_memory, usable_memory
from envmatrix.plan import Slot
from envmatrix.plan.turn_order import InterleavedGroup, comparison_groups, comparison_roots, split_into_waves
from envmatrix.results import Reading, Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.interleaving_eligibility import memory_needs, non_interleaved_reasons

#: The most non-interleaved environments listed by name; in a search their names are long.
_MOST_NAMED = 2


class TrialGrouper:
    """Parts blocks, and remembers how much memory each arm has taken.

    ``usual``: the most bytes that a process of each workload is known to have had before.
    """

    def __init__(
        self, experiment: Experiment, progress: ProgressCallback, usual: Mapping[str, int] | None = None
    ) -> None:
        self._experiment, self._progress = experiment, progress
        self._reported: set[str] = set()
        self._peaks: dict[str, int] = {}
        self._workload_peaks = dict(usual or {})
        self._roots = comparison_roots(experiment.plan.arms)
        self._interleaves = experiment.run.design.schedule == "turns"
        roots = non_interleaved_reasons(experiment.run, experiment.engines) if self._interleaves else ({}, set())
        self._sequential_reasons, self._single_turn_roots = roots

    def note(self, trial: Reading | Trial) -> None:
        """Record the peak memory of a trial's process."""
        peak = (trial.record.metrics or {}).get("peak_rss_bytes") if self._interleaves and trial.record else None
        if peak:
            self._peaks[trial.arm] = max(self._peaks.get(trial.arm, 0), int(peak))
            self._workload_peaks[trial.workload] = max(self._workload_peaks.get(trial.workload, 0), int(peak))

    def in_turns(self, slot: Slot) -> bool:
        """Return whether a trial's steps are interleaved, even if it runs alone for lack of memory."""
        return self._interleaves and self._roots[slot.arm.name] not in self._sequential_reasons

    def starts_together(self, slot: Slot) -> bool:
        """Return whether a trial starts together with those it is compared with, for many turns or for one each."""
        return self.in_turns(slot) or self._roots[slot.arm.name] in self._single_turn_roots

    def of(self, block: Sequence[Slot]) -> list[list[Slot]]:
        """Split a block into groups that are measured together: compared trials that run at once, or single trials."""
        if not self._interleaves:
            return [[slot] for slot in block]
        return [part for group in comparison_groups(block, self._roots) for part in self._parts(group)]

    def _parts(self, group: list[Slot]) -> list[list[Slot]]:
        root = self._roots[group[0].arm.name]
        reason = self._sequential_reasons.get(root)
        if not reason:
            return [group]
        side_by_side = root in self._single_turn_roots
        arrangement = "run uninterrupted, all at the same time" if side_by_side else "run one after another"
        self._report_once(root, f"{self._group_label(root, group)} {arrangement} (not interleaved): {reason}")
        return [group] if side_by_side else [[slot] for slot in group]

    def _group_label(self, root: str, group: Sequence[Slot]) -> str:
        reference_copies = [slot.arm for slot in group if slot.arm.is_uninterrupted_copy]
        if not reference_copies:
            return f"the trials compared with {root}"
        names = sorted({slot.arm.environment for slot in group if not slot.arm.is_uninterrupted_copy})
        if (omitted := len(names) - _MOST_NAMED) > 0:
            names = [*names[:_MOST_NAMED], f"{omitted} more"]
        return f"{', '.join(names)} and {reference_copies[0].environment}, their baseline,"

    def split_by_memory(self, group: Sequence[Slot]) -> list[InterleavedGroup]:
        """Split a group into parts that fit into the free memory."""
        root, design = self._roots[group[0].arm.name], self._experiment.run.design
        workload = self._experiment.run.workloads[group[0].arm.workload]
        one_turn = root in self._single_turn_roots
        memory_by_arm, free_bytes = self._memory_needs(group), free_memory()
        needed_bytes, usable_bytes = sum(memory_by_arm.values()), usable_memory(free_bytes)
        if needed_bytes <= usable_bytes or len(group) == 1:
            return [InterleavedGroup((tuple(group),), one_turn=one_turn)]
        waves = None
        if not (workload.command or one_turn):  # a program's number of turns is unknown
            steps = workload.options.get("steps")
            most_waves = math.ceil(int(steps) / design.turn) if isinstance(steps, (int, str)) else len(group)
            waves = split_into_waves(group, memory_by_arm, usable_bytes, most_waves)
        arrangement = "run one after another"
        if waves:
            arrangement = f"run interleaved in {len(waves.waves)} batches, each with its own reference"
        self._report_once(
            f"{root} {arrangement}",
            f"the trials compared with {root} {arrangement}: {len(group)} processes may need "
            f"{needed_bytes / 2**30:.1f} GiB, but only {free_bytes / 2**30:.1f} GiB are free",
        )
        return [waves] if waves else [InterleavedGroup(((slot,),), one_turn=one_turn) for slot in group]

    def needed_bytes(self, group: Sequence[Slot]) -> int:
        """Return how many bytes the processes of a group may need at once."""
        return sum(self._memory_needs(group).values())

    def _memory_needs(self, group: Sequence[Slot]) -> dict[str, int]:
        return memory_needs(
            [slot.arm for slot in group], self._peaks, self._experiment.run.design.memory, self._workload_peaks
        )

    def _report_once(self, key: str, text: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self._progress(text)

    def partial_group_trials(self, block: Sequence[Slot], done: Collection[str]) -> Iterable[str]:
        """Yield the recorded trials of groups that ``done`` has only in part: a group counts only as a whole."""
        skipped = self._experiment.run.skipped  # a skipped trial may be recorded alone
        runnable = [slot for slot in block if self.starts_together(slot) and slot.arm.name not in skipped]
        for group in comparison_groups(runnable, self._roots):
            recorded_trials = [slot.trial for slot in group if slot.trial in done]
            if len(recorded_trials) < len(group):
                yield from recorded_trials

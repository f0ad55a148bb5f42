"""Result of a run, finished or not, as ``run``, ``resume`` and ``load`` return it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from envmatrix.errors import ExitCode
from envmatrix.report.formats.html_file import to_answer_html
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.report_data import Summary, summarise
from envmatrix.report.tables.columns import Value, effect_values
from envmatrix.results import RunFolder, Trial
from envmatrix.runner.loop import RunEnding
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.steady_state.effect import SteadyEffect

_BROKEN_OUTCOMES = ("failed", "invalid", "timed_out")


@dataclass(frozen=True)
class Result:
    """A run on disk and its results, read on first use.

    ``folder`` contains run.json, trials.jsonl and the reports. ``why``: why the run stopped ('' if loaded).
    ``interrupted``: Ctrl-C stopped it. ``incomplete``: how many blocks lack trials that could still run. ``lost``: it
    was stopped because its references failed in the first block.
    """

    folder: Path
    why: str = ""
    interrupted: bool = False
    incomplete: int = 0
    lost: bool = False

    @classmethod
    def of(cls, folder: RunFolder, ending: RunEnding | None = None, summary: Summary | None = None) -> Result:
        """Return the result of a run's folder, of how the run ended, and of its ``summary`` if it was just read."""
        result = cls(folder.path)
        if ending is not None:
            result = cls(folder.path, ending.why, ending.interrupted, ending.incomplete, ending.lost)
        if summary is not None:
            vars(result)["summary"] = summary  # where the cached property keeps it
        return result

    @cached_property
    def summary(self) -> Summary:
        """The content of the reports. Raises StoreError if the folder cannot be read."""
        return summarise(RunFolder(self.folder))

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.summary.run.name

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effects of the environments in the primary metric, in the order of the plan, with the control.

        ``effect.ratio`` above 1 is better; ``low`` and ``high`` are its 95 % interval, simultaneous for all effects.
        """
        return self.summary.analysis.primary_effects()

    @property
    def steady_effects(self) -> Mapping[str, SteadyEffect]:
        """Arm (``effect.arm``) -> its effect after the first steps, for environments whose processes went on.

        It has ``ratio``, ``low`` and ``high`` like an effect, ``verdict``, and the seconds of the steps of a process
        that it is of: ``since_s`` to ``until_s``. {}: the run measured none (``steady: true`` in its design).
        """
        rows = (row for group in self.summary.groups for row in group.all_rows)
        return {row.arm.name: row.steady for row in rows if row.steady}

    @property
    def best(self) -> Effect | None:
        """The effect of the recommended environment: significantly faster, in ``best_set``, and simple.

        With steady effects it is faster in its later steps, if any environment is, and never slower in them.

        None: no such environment with equal work that fails no more often than its reference. With several workloads or
        engines it is the first one's; ``summary.groups`` has the best of each.
        """
        group_best = self.summary.groups[0].best if self.summary.groups else None
        return group_best.effect if group_best else None

    @property
    def best_set(self) -> tuple[str, ...]:
        """The environments that no other is shown to beat, fastest first; usually includes ``best``."""
        return self.summary.groups[0].best_set if self.summary.groups else ()

    @property
    def gain(self) -> float | None:
        """The ratio of ``best``, corrected for picking the best; ``best.low`` and ``best.high`` need no correction.

        It is that of later steps if ``best`` is faster in them.
        """
        choice = self.summary.groups[0].choice if self.summary.groups else None
        return choice.gain if choice else None

    @property
    def outcomes(self) -> Mapping[str, int]:
        """How many trials were ok, failed, invalid, timed_out or skipped."""
        return self.summary.outcomes

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of ``envmatrix bench``, the first that applies.

        130: interrupted; 4: no trial was ok, or the run was ``lost``; 7: an environment did other work than its
        reference; 3: trials failed or are missing.
        """
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.lost or not self.outcomes.get("ok"):
            return ExitCode.NOTHING_RAN
        if self.other_work:
            return ExitCode.OTHER_WORK
        broken = sum(self.outcomes.get(name, 0) for name in _BROKEN_OUTCOMES) + self.incomplete
        return ExitCode.SOME_FAILED if broken else ExitCode.FINE

    @property
    def is_unfinished(self) -> bool:
        """Whether ``resume`` can complete it."""
        return bool(self.interrupted or self.lost or self.incomplete)

    @property
    def other_work(self) -> tuple[str, ...]:
        """The environments that did other work than their reference: a check of equal work failed."""
        return tuple(dict.fromkeys(effect.environment for effect in self.effects if Flag.UNEQUAL_WORK in effect.flags))

    def rows(self) -> list[dict[str, Value]]:
        """Return the effects as a table, one dict each, for ``pandas.DataFrame(result.rows())``.

        The keys are those of `effects` in summary.json (docs/results.md); unknown values are None.
        """
        return [dict(values) for effect, values in effect_values(self.summary) if effect.primary]

    def trials(self) -> Iterator[Trial]:
        """Yield every trial in the order in which they ran, each with its record. Raises StoreError."""
        folder = RunFolder(self.folder)
        return folder.trials(folder.load().plan)

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.name}: {self.why or self.folder}", *(group.headline for group in self.summary.groups)]
        )

    def _repr_html_(self) -> str:
        """Return the short answer and the table in HTML, for notebooks."""
        return to_answer_html(self.summary)

    def _repr_markdown_(self) -> str:
        """Return the report in Markdown, for notebooks that show no HTML; it has the steady effects."""
        return to_markdown(self.summary)

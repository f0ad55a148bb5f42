"""The result of ``envmatrix selftest`` as text and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from envmatrix.results import RunFolder
from envmatrix.stats.analysis import estimate
from envmatrix.stats.measurements import read_measurements
from envmatrix.stats.selftest import FalseAlarms, relabelled_false_alarms, simulated_false_alarms


@dataclass(frozen=True)
class SelfTest:
    """False alarms of simulated A/A comparisons, and of relabelled real ones (None: no run was given)."""

    simulated: FalseAlarms
    relabelled: FalseAlarms | None

    @property
    def passed(self) -> bool:
        """Return whether neither rate is significantly above the promised one."""
        return self.simulated.as_promised and (self.relabelled is None or self.relabelled.as_promised)

    def to_json(self) -> dict[str, object]:
        """Return the JSON document."""
        return {"schema": 1, "passed": self.passed, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the result as sentences."""
        sentences = [_sentence("simulated A/A comparisons on a drifting machine", self.simulated)]
        if self.relabelled is not None:
            sentences.append(
                _sentence("A/A comparisons by relabelling the run's baseline and control", self.relabelled)
            )
        return sentences


def _sentence(what: str, alarms: FalseAlarms) -> str:
    if alarms.rate is None or alarms.low is None or alarms.high is None:
        return f"{what}: none (there is no complete pair of baseline and control)"
    return (
        f"{alarms.comparisons:,} {what}: {alarms.rate:.2%} called different (95 % interval "
        f"{alarms.low:.2%} to {alarms.high:.2%}; nominal {alarms.nominal:.0%})"
    )


def selftest(comparisons: int, folder: RunFolder | None = None, blocks: int = 10, seed: int = 1) -> SelfTest:
    """Run ``comparisons`` simulated A/A comparisons, and as many relabelled ones of a run if one is given."""
    relabelled = None
    if folder is not None:
        run = folder.load()
        measured = read_measurements(folder, run.plan)
        analysis = estimate(run.plan, measured, workloads=run.workloads, metrics=())
        relabelled = relabelled_false_alarms(analysis, measured, comparisons, seed)
    return SelfTest(simulated_false_alarms(comparisons, blocks, seed=seed), relabelled)

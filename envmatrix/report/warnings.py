"""Warnings about the trials and effects of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from envmatrix.plan import shown_name
from envmatrix.report.formatting import format_count, format_interval, format_ratio, list_names
from envmatrix.report.machine_warnings import MACHINE_CHECKS
from envmatrix.report.warning import Check, Findings, RunWarning, WarningKind
from envmatrix.results import Run
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.effects import Flag
from envmatrix.stats.inference.standard_errors import ENOUGH_MINUTES, format_span, too_short
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.nodes import mixed_blocks
from envmatrix.stats.quality.cold_turns import cold_turns_by_workload
from envmatrix.stats.quality.equal_work import unchecked, unstable_checks
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS, describe_slow_trials
from envmatrix.stats.stopping.plan_deviations import missing_trials_text, trials_after_leaving
from envmatrix.system.printable import printable_line


def _nothing_measured(run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    if not any(fact.outcomes["ok"] for fact in measured.facts.values()):
        yield run.plan.design, "no trial succeeded, so there is no result"


def _no_reference(run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    for name in sorted({arm.reference for arm in run.plan.arms if arm.reference}):
        if name not in measured.facts or not measured.facts[name].outcomes["ok"]:
            yield name, "no trial of it succeeded: nothing can be compared with it"


def _max_blocks_hint(run: Run, measured: Measurements) -> str:
    """Return the extra option that a resumed run needs if it already has its maximum of blocks."""
    return "" if len(measured.blocks) < run.plan.max_blocks else f" and a `--max-blocks` above {run.plan.max_blocks}"


def _few_blocks(run: Run, measured: Measurements, analysis: Analysis) -> Findings:
    short = [effect for effect in analysis.primary_effects() if effect.missing > 0 and effect.blocks]
    if short:
        missing = format_count(max(effect.missing for effect in short), "more block")
        yield (
            ", ".join(dict.fromkeys(effect.environment for effect in short)),
            f"fewer than {run.plan.min_blocks} complete blocks: no verdict",
            f"`envmatrix resume {run.name}` with a larger budget{_max_blocks_hint(run, measured)}: {missing} needed",
        )


def _control_off(_run: Run, _measured: Measurements, analysis: Analysis) -> Findings:
    for effect in analysis.primary_effects():
        low, high = effect.low, effect.high
        if effect.is_control and low is not None and high is not None and not low <= 1.0 <= high:
            figures = f"{format_ratio(effect.ratio)}, interval {format_interval(effect)}"
            yield effect.arm, f"two copies of one environment differ: {figures}"


def _unequal_work(_run: Run, _measured: Measurements, analysis: Analysis) -> Findings:
    for effect in analysis.primary_effects():
        if Flag.UNEQUAL_WORK in effect.flags:
            yield effect.arm, "; ".join(effect.notes)


def _workloads(run: Run) -> list[str]:
    return list(dict.fromkeys(arm.workload for arm in run.plan.arms))


def _unchecked(run: Run, _measured: Measurements, _analysis: Analysis) -> Findings:
    if names := [name for name in _workloads(run) if unchecked(run.workloads.get(name))]:
        yield (
            ", ".join(names),
            "nothing shows that every environment did equal work",
            ("`--save` writes its matrix: there " if run.has_generated_matrix else "")
            + "add `check:` with a number that depends only on the work, such as a final loss (docs/workloads.md)",
        )


def _unstable(run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    for name in _workloads(run):
        yield from ((name, text) for text in unstable_checks(measured, run.plan, name).values())


def _no_number(run: Run, measured: Measurements, analysis: Analysis) -> Findings:
    where = "--metric-regex or --metric-json" if run.has_generated_matrix else "the workload's `metric`"
    for arm in run.plan.arms:
        metric, ok = analysis.primary[arm.workload], measured.facts[arm.name].outcomes["ok"]
        if ok and not (measured.of(arm.name, metric.name) > 0).any():
            yield (
                arm.name,
                f"none of {format_count(ok, 'successful trial')} has a {metric.label} above 0",
                f"check the trial's record and {where}: a speed-up is a ratio of numbers above 0",
            )


def _stand_in(_run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    names = {name for fact in measured.facts.values() if fact.stand_in for name in fact.data}
    if names:
        yield (
            ", ".join(sorted(names)),
            "the real data set is not available; trials used generated data of the same shape",
        )


def _ended_with(*outcomes: str) -> Callable[[Run, Measurements, Analysis], Findings]:
    """Return the check for trials with one of these outcomes."""

    def find(_run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
        for name, fact in measured.facts.items():
            if number := sum(fact.outcomes[outcome] for outcome in outcomes):
                reasons = "; ".join(text for text in fact.reasons if text.startswith(outcomes))
                total = format_count(sum(fact.outcomes.values()), "trial")
                yield name, f"{number} of {total}: {printable_line(reasons, 300)}"

    return find


def _slow_trials(run: Run, measured: Measurements, analysis: Analysis) -> Findings:
    shared = {arm.name for arm in run.plan.arms if arm.is_control} | {arm.reference for arm in run.plan.arms}
    for name, slow in describe_slow_trials(run.plan, measured, analysis.primary, analysis.slow).items():
        effect = analysis.find(name)
        usual = ""
        if effect:
            ratios = format_ratio(effect.usual), format_ratio(effect.ratio)
            usual = " (speed-up without slow trials {}, with them {})".format(*ratios)
        held = (
            f"a verdict{'' if name in shared else ' on ' + name.partition(':')[0]} takes at least {LEAST_BLOCKS} blocks"
        )
        held = f". Outliers make the interval unreliable, so {held}" if slow.trials < LEAST_BLOCKS else ""
        resume = f"`envmatrix {run.more_blocks_command}` with a larger budget, and "
        yield (
            name,
            f"{slow} than the others{usual}{held}",
            (resume if slow.trials < LEAST_BLOCKS else "") + "find the cause in the slow trials' records",
        )


def _short_run(run: Run, measured: Measurements, analysis: Analysis) -> Findings:
    effects = analysis.primary_effects()
    if too_short(measured.block_gaps) and any(effect.low is not None for effect in effects):
        alike = [shown_name(effect.arm) for effect in effects if 0 < effect.units < effect.blocks]
        fewer = f"; neighbouring blocks of {list_names(alike)} are correlated and count as fewer" if alike else ""
        yield (
            f"design {run.plan.design}",
            f"its blocks span {format_span(measured.block_gaps)}. Only intervals of {ENOUGH_MINUTES} minutes or more "
            f"include slow phases of the machine{fewer}",
            f"`envmatrix {run.more_blocks_command}` with a larger budget{_max_blocks_hint(run, measured)} "
            "(if the run stopped at its target precision, also pass a smaller `--target`)",
        )


def _cold_turns(run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    for workload, cold in cold_turns_by_workload(run.plan, measured).items():
        ratio, low, high = map(format_ratio, (cold.ratio, cold.low, cold.high))
        yield (
            workload,
            f"the first counted step after a pause takes {ratio} ({low} to {high}) times as long as its last: caches "
            "still hold another process's data",
            f"set `turn_apart: {run.design.turn_apart + 2}` in the design: so many steps after a pause are not counted",
        )


def _skipped(run: Run, _measured: Measurements, _analysis: Analysis) -> Findings:
    yield from ((name, printable_line(reason, 300)) for name, reason in run.skipped.items())


def _mixed_hosts(_run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    if mixed := mixed_blocks(measured):
        blocks = format_count(len(mixed), "block")
        yield ", ".join(measured.nodes[:8]), f"trials of {blocks} ran on several machines (block {mixed[0]} first)"


def _missing_trials(run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    if text := missing_trials_text(run.plan, measured):
        yield (
            "trials.jsonl",
            text,
            "restore the file if lines were deleted from it, or run them with "
            f"`envmatrix resume {run.name}`: until then their pairs do not count",
        )


def _after_leaving(_run: Run, measured: Measurements, analysis: Analysis) -> Findings:
    for arm, blocks in (trials_after_leaving(analysis.race, measured) if analysis.race else {}).items():
        trials = format_count(len(blocks), "trial")
        yield arm, f"{trials} (block {blocks[0]} first) ran after it was dropped from the race"


#: To add a check, add an entry.
CHECKS = (
    Check(WarningKind.NOTHING_MEASURED, _nothing_measured,
          "read the reasons below and the files in logs/; `envmatrix doctor` checks the machine"),
    Check(WarningKind.NO_REFERENCE, _no_reference, "read the reasons below, fix them, and repeat the run"),
    Check(WarningKind.CONTROL_OFF, _control_off,
          "repeat the run on a quieter machine before you act on small effects: something other than the environment "
          "affects the trials (or this is one of the 5 % of false alarms)"),
    Check(WarningKind.UNEQUAL_WORK, _unequal_work,
          "find out why before you use its speed-up: it did not do the work of its reference"),
    Check(WarningKind.UNCHECKED, _unchecked),
    Check(WarningKind.UNCHECKED, _unstable,
          "set a seed, or check a number that depends only on the work, such as a count of steps"),
    Check(WarningKind.TOO_FEW_BLOCKS, _few_blocks),
    Check(WarningKind.NO_NUMBER, _no_number),
    Check(WarningKind.STAND_IN, _stand_in,
          "use the speeds, not the accuracies; with internet access, the next run downloads the real data"),
    Check(WarningKind.INVALID, _ended_with("invalid"),
          "fix the level, or its checks: the environment was not what its name says"),
    Check(WarningKind.FAILED, _ended_with("failed", "timed_out"), "read the trial's file in logs/"),
    Check(WarningKind.SLOW_TRIALS, _slow_trials),
    Check(WarningKind.SHORT_RUN, _short_run),
    Check(WarningKind.COLD_TURNS, _cold_turns),
    Check(WarningKind.SKIPPED, _skipped, "install or change what the reason names"),
    Check(WarningKind.MIXED_HOSTS, _mixed_hosts,
          "keep each block on one machine: only then do differences between machines cancel"),
    Check(WarningKind.MISSING, _missing_trials),
    Check(WarningKind.AFTER_LEAVING, _after_leaving,
          "read its interval as that of an early verdict: by the rules of this version it was dropped earlier"),
)  # fmt: skip


def find_warnings(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    """Yield the warnings of every check."""
    for check in (*CHECKS, *MACHINE_CHECKS):
        yield from check.warnings(run, measured, analysis)

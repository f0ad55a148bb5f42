"""Warnings about the trials and effects of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from envmatrix.plan import shown_name
from envmatrix.report import machine_warnings
from envmatrix.report.formatting import format_count, format_interval, format_ratio, list_names
from envmatrix.report.warning import RunWarning, WarningKind, one_per_cause
from envmatrix.results import Run
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.effects import Flag
from envmatrix.stats.inference.slow_phases import ENOUGH_MINUTES, format_span, too_short
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.nodes import mixed_blocks
from envmatrix.stats.quality.cold_turns import cold_turns
from envmatrix.stats.quality.equal_work import unchecked, unstable_checks
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS, describe_slow_trials
from envmatrix.stats.stopping.missing_trials import missing_trials_text, trials_after_leaving
from envmatrix.system.printable import printable_line


def _nothing_measured(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    if not any(fact.outcomes["ok"] for fact in measured.facts.values()):
        yield RunWarning(
            WarningKind.NOTHING_MEASURED,
            run.plan.design,
            "no trial succeeded, so there is no result",
            "read the reasons below and the files in logs/; `envmatrix doctor` checks the machine",
        )


def _no_reference(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    names = {arm.reference for arm in run.plan.arms if arm.reference}
    for name in sorted(names):
        if name not in measured.facts or not measured.facts[name].outcomes["ok"]:
            yield RunWarning(
                WarningKind.NO_REFERENCE,
                name,
                "no trial of it succeeded: nothing can be compared with it",
                "read the reasons below, fix them, and repeat the run",
            )


def _max_blocks_hint(run: Run, measured: Measurements) -> str:
    """Return the extra option that a resumed run needs if it already has its maximum of blocks."""
    return "" if len(measured.blocks) < run.plan.max_blocks else f" and a `--max-blocks` above {run.plan.max_blocks}"


def _few_blocks(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    short = [effect for effect in analysis.primary_effects() if effect.missing > 0 and effect.blocks]
    if short:
        most_missing = max(effect.missing for effect in short)
        yield RunWarning(
            WarningKind.TOO_FEW_BLOCKS,
            ", ".join(dict.fromkeys(effect.environment for effect in short)),
            f"fewer than {run.plan.min_blocks} complete blocks: no verdict",
            f"`envmatrix resume {run.name}` with a larger budget{_max_blocks_hint(run, measured)}: "
            f"{format_count(most_missing, 'more block')} needed",
        )


def _control_off(_run: Run, _measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    for effect in analysis.primary_effects():
        low, high = effect.low, effect.high
        if effect.is_control and low is not None and high is not None and not low <= 1.0 <= high:
            yield RunWarning(
                WarningKind.CONTROL_OFF,
                effect.arm,
                f"two copies of one environment differ: {format_ratio(effect.ratio)}, interval "
                f"{format_interval(effect)}",
                "repeat the run on a quieter machine before you act on small effects: something other than the "
                "environment affects the trials (or this is one of the 5 % of false alarms)",
            )


def _unequal_work(_run: Run, _measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    for effect in analysis.primary_effects():
        if Flag.UNEQUAL_WORK in effect.flags:
            yield RunWarning(
                WarningKind.UNEQUAL_WORK,
                effect.arm,
                "; ".join(effect.notes),
                "find out why before you use its speed-up: it did not do the work of its reference",
            )


def _unchecked(run: Run, _measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    names = [
        name for name in dict.fromkeys(arm.workload for arm in run.plan.arms) if unchecked(run.workloads.get(name))
    ]
    if names:
        yield RunWarning(
            WarningKind.UNCHECKED,
            ", ".join(names),
            "nothing shows that every environment did equal work",
            ("`--save` writes its matrix: there " if run.is_of_program else "")
            + "add `check:` with a number that depends only on the work, such as a final loss (docs/workloads.md)",
        )


def _unstable(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    for name in dict.fromkeys(arm.workload for arm in run.plan.arms):
        for text in unstable_checks(measured, run.plan, name).values():
            yield RunWarning(
                WarningKind.UNCHECKED,
                name,
                text,
                "set a seed, or check a number that depends only on the work, such as a count of steps",
            )


def _no_number(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    where = "--metric-regex or --metric-json" if run.is_of_program else "the workload's `metric`"
    for arm in run.plan.arms:
        metric, ok = analysis.primary[arm.workload], measured.facts[arm.name].outcomes["ok"]
        usable = int((measured.of(arm.name, metric.name) > 0).sum())
        if ok and not usable:
            yield RunWarning(
                WarningKind.NO_NUMBER,
                arm.name,
                f"none of {format_count(ok, 'successful trial')} has a {metric.label} above 0",
                f"check the trial's record and {where}: a speed-up is a ratio of numbers above 0",
            )


def _stand_in(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    names = {name for fact in measured.facts.values() if fact.stand_in for name in fact.data}
    if names:
        yield RunWarning(
            WarningKind.STAND_IN,
            ", ".join(sorted(names)),
            "the real data set is not available; trials used generated data of the same shape",
            "use the speeds, not the accuracies; with internet access, the next run downloads the real data",
        )


def _outcome_check(
    effect_kind: WarningKind, outcomes: tuple[str, ...], remedy: str
) -> Callable[..., Iterator[RunWarning]]:
    def find(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
        for name, fact in measured.facts.items():
            number = sum(fact.outcomes[outcome] for outcome in outcomes)
            reasons = [text for text in fact.reasons if text.startswith(outcomes)]
            if number:
                total = sum(fact.outcomes.values())
                yield RunWarning(
                    effect_kind,
                    name,
                    f"{number} of {format_count(total, 'trial')}: {printable_line('; '.join(reasons), 300)}",
                    remedy,
                )

    return find


def _slow_trials(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    shared = {arm.name for arm in run.plan.arms if arm.is_control} | {arm.reference for arm in run.plan.arms}
    for name, slow in describe_slow_trials(run.plan, measured, analysis.primary, analysis.slow).items():
        effect = analysis.find(name)
        usual = (
            f"; speed-up without slow trials {format_ratio(effect.usual)}, with them {format_ratio(effect.ratio)}"
            if effect
            else ""
        )
        waits = slow.trials < LEAST_BLOCKS
        whose = "" if name in shared else f" for {name.partition(':')[0]}"
        held = f"a verdict{whose} takes at least {LEAST_BLOCKS} blocks"
        yield RunWarning(
            WarningKind.SLOW_TRIALS,
            name,
            f"{slow} than the others{usual}",
            (f"`envmatrix resume {run.name}` with a larger budget ({held}), and " if waits else "")
            + "find the cause in the slow trials' records",
        )


def _short_run(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    if too_short(measured.apart) and any(effect.low is not None for effect in analysis.primary_effects()):
        alike_arms = [
            shown_name(effect.arm) for effect in analysis.primary_effects() if 0 < effect.units < effect.blocks
        ]
        alike_text = (
            f"; neighbouring blocks of {list_names(alike_arms)} are correlated and count as fewer" if alike_arms else ""
        )
        yield RunWarning(
            WarningKind.SHORT_RUN,
            f"design {run.plan.design}",
            f"its blocks span {format_span(measured.apart)}. Only intervals of "
            f"{ENOUGH_MINUTES} minutes or more include slow phases of the machine{alike_text}",
            f"`envmatrix resume {run.name}` with a larger budget{_max_blocks_hint(run, measured)} "
            "(if the run stopped at its target precision, also pass a smaller `--target`)",
        )


def _cold_turns(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    for workload, cold in cold_turns(run.plan, measured).items():
        longer = (
            f"{format_ratio(cold.ratio)} ({format_ratio(cold.low)} to {format_ratio(cold.high)}) times as "
            "long as its last"
        )
        yield RunWarning(
            WarningKind.COLD_TURNS,
            workload,
            f"the first counted step after a pause takes {longer}: caches still hold another process's data",
            f"set `turn_apart: {run.design.turn_apart + 2}` in the design: so many steps after a pause are not counted",
        )


def _skipped(run: Run, _measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    for name, reason in run.skipped.items():
        yield RunWarning(
            WarningKind.SKIPPED, name, printable_line(reason, 300), "install or change what the reason names"
        )


def _mixed_hosts(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    mixed = mixed_blocks(measured)
    if mixed:
        yield RunWarning(
            WarningKind.MIXED_HOSTS,
            ", ".join(measured.nodes[:8]),
            f"trials of {format_count(len(mixed), 'block')} ran on several machines (block {mixed[0]} first)",
            "keep each block on one machine: only then do differences between machines cancel",
        )


def _missing_trials(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    missing_text = missing_trials_text(run.plan, measured)
    if missing_text:
        yield RunWarning(
            WarningKind.MISSING,
            "trials.jsonl",
            missing_text,
            "restore the file if lines were deleted from it, or run them with "
            f"`envmatrix resume {run.name}`: until then their pairs do not count",
        )


def _after_leaving(_run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    late_blocks = trials_after_leaving(analysis.race, measured) if analysis.race else {}
    for arm, blocks in late_blocks.items():
        yield RunWarning(
            WarningKind.AFTER_LEAVING,
            arm,
            f"{format_count(len(blocks), 'trial')} (block {blocks[0]} first) ran after it was dropped from the race",
            "read its interval as that of an early verdict: by the rules of this version it was dropped earlier",
        )


#: To add a check, add an entry.
CHECKS: tuple[Callable[[Run, Measurements, Analysis], Iterator[RunWarning]], ...] = (
    _nothing_measured,
    _no_reference,
    _control_off,
    _unequal_work,
    _unchecked,
    _unstable,
    _few_blocks,
    _no_number,
    _stand_in,
    _outcome_check(
        WarningKind.INVALID,
        ("invalid",),
        "fix the level, or its checks: the environment was not what its name says",
    ),
    _outcome_check(WarningKind.FAILED, ("failed", "timed_out"), "read the trial's file in logs/"),
    _slow_trials,
    _short_run,
    _cold_turns,
    _skipped,
    _mixed_hosts,
    _missing_trials,
    _after_leaving,
)


def find_warnings(run: Run, measured: Measurements, analysis: Analysis) -> tuple[RunWarning, ...]:
    """Return the warnings of every check, the gravest kinds first."""
    found = (caution for check in (*CHECKS, *machine_warnings.CHECKS) for caution in check(run, measured, analysis))
    return one_per_cause(found)

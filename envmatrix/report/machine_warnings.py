"""Warnings about the machine during a run: drift, stolen time, other load, changing frequency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from envmatrix.matrix.known_variables import find_reader
from envmatrix.plan import shown_name
from envmatrix.report.formatting import format_count
from envmatrix.report.warning import Check, Findings, WarningKind
from envmatrix.results import Run
from envmatrix.stats.array_types import Floats
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.measurements import Measurements, finite_medians
from envmatrix.stats.pairing import logs_of
from envmatrix.stats.quality.contention import DISTURBED, outer_quota
from envmatrix.stats.trial_text_counts import ArmFacts
from envmatrix.system.printable import printable_line

#: Relative change from the first block to the last. Pairs cancel drift, but this much means a busy machine.
DRIFT = 0.05
STOLEN = 0.01
#: Reported for single blocks too, if most are quiet.
MUCH_DISTURBED = 0.25
BUSY = 0.05
FREQUENCY = 0.10
_TICKS_PER_S = 100.0


def _block_levels(measured: Measurements, names: list[str], metric: str) -> Floats:
    """Return the mean log speed of each block, adjusted for the level of each arm; NaN for empty blocks."""
    logs = logs_of(measured.table[metric][[measured.arms.index(name) for name in names]])
    is_present = np.isfinite(logs)
    arm_levels = np.where(is_present, logs, 0).sum(axis=1) / np.maximum(is_present.sum(axis=1), 1)
    residuals = np.where(is_present, logs - arm_levels[:, None], 0.0)
    trial_counts = is_present.sum(axis=0)
    return np.where(trial_counts > 0, residuals.sum(axis=0) / np.maximum(trial_counts, 1), np.nan)


def slope_and_standard_error(values: Floats) -> tuple[float, float]:
    """Return the least-squares slope per step of at least four values, and its standard error.

    ``scipy.stats`` would take longer to import than a report takes to write.
    """
    line, covariance = np.polyfit(np.arange(values.size), values, 1, cov=True)
    return float(line[0]), float(np.sqrt(covariance[0, 0]))


def _drift(run: Run, measured: Measurements, analysis: Analysis) -> Findings:
    """Find a trend over the blocks that is both large and significant."""
    for workload, metric in analysis.primary.items():
        names = [arm.name for arm in run.plan.arms if arm.workload == workload]
        level = _block_levels(measured, names, metric.name)
        level = level[np.isfinite(level)]
        if level.size < 5:
            continue
        slope, error = slope_and_standard_error(level)
        total_change = slope * (level.size - 1)
        if abs(total_change) > DRIFT and abs(slope) > 3 * error:
            yield workload, f"all trials changed by {total_change:+.0%} from the first block to the last"


def _steal_time(run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    """Find CPU time that the hypervisor gave to other guests.

    The kernel's ticks (1/100 s) are summed over all CPUs, and compared with the timed part, or with the whole of a
    user's own program.
    """
    timed, trial_s = measured.table["training_s"], measured.table["trial_s"]
    cpu_seconds = np.where(np.isfinite(timed), timed, trial_s) * max(1, len(run.host.cpus))
    shares = measured.table["steal_ticks"] / _TICKS_PER_S / cpu_seconds
    shares = shares[np.isfinite(shares)]
    if shares.size and float(np.mean(shares)) > STOLEN:
        yield "the virtual machine", f"the hypervisor took its CPUs away for {np.mean(shares):.1%} of the time"


def _contention(run: Run, measured: Measurements, analysis: Analysis) -> Findings:
    """Find CPU contention: threads that were runnable but waited for a CPU, because of other programs or each other."""
    shares, waits = measured.cpu_wait_shares(), analysis.for_cpus
    contended_arms = [arm.name for arm in run.plan.arms if arm.name in waits and waits[arm.name].share > DISTURBED]
    only_compared = bool(contended_arms) and all(waits[name].own for name in contended_arms)
    if np.isfinite(shares).any() and (only_compared or any(waits[name].is_busy for name in contended_arms)):
        of_those = shares[[arm in contended_arms for arm in measured.arms]] if only_compared else shares
        worst = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
        yield (
            ", ".join(contended_arms) if only_compared else "the machine",
            f"CPU contention: threads that could run waited for a CPU {np.nanmedian(of_those):.0%} of the time (most, "
            f"{shares[worst]:.0%}: {shown_name(measured.arms[worst[0]])} in block {measured.blocks[worst[1]]})",
            "use no more threads or ranks than CPUs: no other program took CPU time, so they wait for each other"
            if only_compared
            else "run `envmatrix doctor`: it names the programs that take CPU time; more threads than CPUs contend too",
        )


def _quota(run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    """Find a CPU quota around envmatrix itself, such as that of a pod."""
    if quota := outer_quota(run, measured):
        cpus, used_up = quota
        yield (
            "the machine",
            f"a CPU quota of the control group limits trials to the time of {cpus:g} of {len(run.host.cpus)} CPUs; "
            f"it was used up in {used_up:.0%} of its periods",
        )


def _contended_blocks(run: Run, measured: Measurements, analysis: Analysis) -> Findings:
    """Find single blocks with CPU contention on a machine that is otherwise quiet."""
    if any(_contention(run, measured, analysis)):
        return
    shares = measured.cpu_wait_shares()
    is_known = np.isfinite(shares)
    if not is_known.any() or float(np.median(shares[is_known])) > DISTURBED:
        return
    medians = zip(measured.blocks.tolist(), finite_medians(shares, 0).tolist(), strict=True)
    blocks = {block: share for block, share in medians if math.isfinite(share)}
    contended_blocks = [block for block, share in blocks.items() if share > MUCH_DISTURBED]
    if contended_blocks:
        worst = max(contended_blocks, key=lambda block: blocks[block])
        yield (
            "the machine",
            f"other programs contended for CPUs in {len(contended_blocks)} of {format_count(len(blocks), 'block')} "
            f"(most, block {worst}: threads that could run waited for a CPU {blocks[worst]:.0%} of the time)",
        )


def _other_load(run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    """Find a load that the trials did not cause, unless they are interleaved (several processes at once)."""
    if run.design.schedule == "turns":
        return
    load = measured.table["load_1m"]
    load = load[np.isfinite(load)]
    count = len(run.host.cpus)
    if count and load.size and float(np.median(load)) > 1.5 * count + 1:
        yield "the machine", f"its load was {np.median(load):.1f} on {count} CPUs"


def _other_node_users(_run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    """Find the blocks of each node before which others used its CPUs, while the job was still idle."""
    for node in dict.fromkeys(node for node, _ in measured.node_checks):
        checks = {block: check for (where, block), check in measured.node_checks.items() if where == node}
        busy = {block: check for block, check in checks.items() if (check.busy or 0) > BUSY}
        if not busy:
            continue
        block, check = max(busy.items(), key=lambda item: item[1].busy or 0)
        names = f" ({', '.join(check.others)} ran there)" if check.others else ""
        yield (
            node,
            f"others used its CPUs before {len(busy)} of the {format_count(len(checks), 'block')} that ran on it; "
            f"most, {check.busy:.0%} of all, before block {block}{printable_line(names, 200)}",
            "run with `--busy 10%`, which runs such a block elsewhere; ask who else may use nodes that jobs have "
            "exclusively",
        )


def _frequency_change(_run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    """Find a CPU frequency that changed between trials, if it is readable."""
    speeds = measured.table["mhz"]
    speeds = speeds[np.isfinite(speeds) & (speeds > 0)]
    if speeds.size > 1 and float(np.ptp(speeds)) > FREQUENCY * float(speeds.max()):
        yield "the CPU", f"its frequency went from {speeds.min():.0f} to {speeds.max():.0f} MHz"


def _unverifiable_environments(run: Run, _measured: Measurements, _analysis: Analysis) -> Findings:
    """Find environments that differ from their reference, but without a check or variable to verify that."""
    runs = {arm.name: arm.runs for arm in run.plan.arms}
    for arm in run.plan.arms:
        environment, reference = (run.environments.get(name) for name in (arm.runs, runs.get(arm.reference or "", "")))
        differs = environment and reference and environment.levels != reference.levels
        if environment and differs and not environment.claims and not environment.variables:
            yield arm.environment, "its levels have no checks: nothing verifies that they have an effect"


def _causes(texts: Callable[[ArmFacts], Counter[str]]) -> Callable[[Run, Measurements, Analysis], Findings]:
    """Return the check that finds each cause once, for all environments together, with a count of trials."""

    def find(_run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
        for cause in dict.fromkeys(text for fact in measured.facts.values() for text in texts(fact)):
            affected = {name: fact for name, fact in measured.facts.items() if texts(fact)[cause]}
            number = sum(texts(fact)[cause] for fact in affected.values())
            total = format_count(sum(fact.outcomes["ok"] for fact in affected.values()), "trial")
            yield ", ".join(affected), f"{printable_line(cause, 400)} ({number} of {total})"

    return find


def _odd_processes(_run: Run, measured: Measurements, _analysis: Analysis) -> Findings:
    """Find processes with pinned or duplicated threads or lost preloads, which the table does not show."""
    for name, fact in measured.facts.items():
        yield from ((name, printable_line(text, 400)) for text in fact.oddities)


def _shell(run: Run, _measured: Measurements, _analysis: Analysis) -> Findings:
    """Find variables of the user's shell that affect speed and were passed to all environments, or to none."""
    names = sorted({name for entry in run.workloads.values() for name in entry.pass_env if find_reader(name)})
    if names:
        yield (
            "the shell",
            f"every environment inherited its {', '.join(names)}, unless a level sets it",
            "start from a shell without them to measure PyTorch as it comes",
        )
    if run.shell_preload:
        yield (
            "the shell",
            f"no environment inherited its LD_PRELOAD ({printable_line(run.shell_preload, 200)})",
            "add `preload:` to a level for a library that your program needs",
        )


#: To add a check of the machine, add an entry.
MACHINE_CHECKS = (
    Check(WarningKind.DRIFT, _drift,
          "find the cause, although pairs cancel it: heat, another program on the host, a growing cache"),
    Check(WarningKind.STEAL, _steal_time,
          "use a machine with dedicated CPUs, or more blocks: intervals are wider for it, not wrong"),
    Check(WarningKind.QUOTA, _quota,
          "measure without it, or use no more threads than that: `envmatrix docs cpu-limit`"),
    Check(WarningKind.DISTURBED, _contention),
    Check(WarningKind.DISTURBED, _contended_blocks,
          "run `envmatrix doctor`: it names them; pairs cancel much of this, and intervals are wider for it"),
    Check(WarningKind.OTHER_LOAD, _other_load, "end the other programs, or measure when they do not run"),
    Check(WarningKind.OTHER_LOAD, _other_node_users),
    Check(WarningKind.FREQUENCY, _frequency_change,
          "set the governor to performance and turn turbo off while you measure; `envmatrix doctor` shows how"),
    Check(WarningKind.UNVERIFIED, _unverifiable_environments,
          "add `claims:` to its level, so that a trial in which it has no effect is INVALID"),
    Check(WarningKind.UNPROVEN, _causes(lambda fact: fact.unproven),
          "see docs/workloads.md for what can be verified in a program: the figures are valid, but the environment is "
          "neither recommended nor in the best set"),
    Check(WarningKind.ELSEWHERE, _causes(lambda fact: fact.elsewhere),
          "start the process that does the work inside each trial, and let the program wait for it"),
    Check(WarningKind.NO_GPU, _causes(lambda fact: fact.without_gpu),
          "run `envmatrix doctor`, which looks for a GPU and its driver, unless you mean to measure the CPU"),
    Check(WarningKind.ODDITY, _odd_processes, "read `envmatrix docs odd-process` for what to change"),
    Check(WarningKind.SHELL, _shell),
)  # fmt: skip

"""Warnings about the machine while it measured: drift, stolen time, other load, changing frequency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from envmatrix.matrix.readers import find_reader
from envmatrix.plan import shown_name
from envmatrix.report.formatting import format_count
from envmatrix.report.warning import RunWarning, WarningKind
from envmatrix.results import Run
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.arm_facts import ArmFacts
from envmatrix.stats.contention import DISTURBED, quota_around
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import logs_of
from envmatrix.system.printable import printable_line

Floats = NDArray[np.float64]
#: From the first to the last block; pairs cancel drift, but a machine that drifts this much is not at rest.
DRIFT = 0.05
STOLEN = 0.01
#: Told of single blocks too, where most are quiet.
MUCH_DISTURBED = 0.25
BUSY = 0.05
FREQUENCY = 0.10
_TICKS_PER_S = 100.0


def _block_levels(measured: Measurements, names: list[str], metric: str) -> Floats:
    """Return each block's mean log speed, arms' own levels taken out; NaN where a block has no trial."""
    logs = logs_of(measured.table[metric][[measured.arms.index(name) for name in names]])
    is_present = np.isfinite(logs)
    arm_levels = np.where(is_present, logs, 0).sum(axis=1) / np.maximum(is_present.sum(axis=1), 1)
    residuals = np.where(is_present, logs - arm_levels[:, None], 0.0)
    trial_counts = is_present.sum(axis=0)
    return np.where(trial_counts > 0, residuals.sum(axis=0) / np.maximum(trial_counts, 1), np.nan)


def fit_trend(values: Floats) -> tuple[float, float]:
    """Return the least-squares slope of four or more values, a step each, and its standard error.

    (``scipy.stats``, which has the same, takes longer to load than a report takes to write.)
    """
    line, covariance = np.polyfit(np.arange(values.size), values, 1, cov=True)
    return float(line[0]), float(np.sqrt(covariance[0, 0]))


def find_drift(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    """Find a trend over the blocks that is both large and beyond the noise."""
    for workload, metric in analysis.primary.items():
        names = [arm.name for arm in run.plan.arms if arm.workload == workload]
        level = _block_levels(measured, names, metric.name)
        level = level[np.isfinite(level)]
        if level.size < 5:
            continue
        slope, error = fit_trend(level)
        total_change = slope * (level.size - 1)
        if abs(total_change) > DRIFT and abs(slope) > 3 * error:
            yield RunWarning(
                WarningKind.DRIFT,
                workload,
                f"all trials moved by {total_change:+.0%} from the first block to the last",
                "find its cause, though pairs cancel it: heat, a neighbour on the host, a growing cache",
            )


def find_steal_time(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find time that the hypervisor gave to others.

    The kernel's ticks (a hundredth of a second) are summed over all CPUs, and counted over the timed part, or over the
    whole of a program of the user's own.
    """
    timed, trial_s = measured.table["training_s"], measured.table["trial_s"]
    cpu_seconds = np.where(np.isfinite(timed), timed, trial_s) * max(1, len(run.host.cpus))
    shares = measured.table["steal_ticks"] / _TICKS_PER_S / cpu_seconds
    shares = shares[np.isfinite(shares)]
    if shares.size and float(np.mean(shares)) > STOLEN:
        yield RunWarning(
            WarningKind.STEAL, "the virtual machine", f"its CPUs were taken away for {np.mean(shares):.1%} of the time",
            "use a machine with CPUs of its own, or more blocks: intervals are wider for it, not wrong",
        )  # fmt: skip


def find_contention(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[RunWarning]:
    """Find trials whose threads were ready to run while others had their CPUs: other programs, or one another."""
    shares = measured.disturbed()
    is_known = np.isfinite(shares)
    waits = analysis.for_cpus
    contended_arms = [arm.name for arm in run.plan.arms if arm.name in waits and waits[arm.name].share > DISTURBED]
    only_compared = bool(contended_arms) and all(waits[name].own for name in contended_arms)
    if is_known.any() and (only_compared or any(waits[name].is_busy for name in contended_arms)):
        of_those = shares[[arm in contended_arms for arm in measured.arms]] if only_compared else shares
        worst = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
        yield RunWarning(
            WarningKind.DISTURBED, ", ".join(contended_arms) if only_compared else "the machine",
            f"disturbed {np.nanmedian(of_those):.0%}: so much of the time in which their threads could have run they "
            f"waited for a CPU (most, {shares[worst]:.0%}: {shown_name(measured.arms[worst[0]])} in block "
            f"{measured.blocks[worst[1]]})",
            "use no more threads or ranks than CPUs: other programs took none, so these wait for one another"
            if only_compared
            else "run `envmatrix doctor`: it names what runs beside; more threads than CPUs wait for one another too",
        )  # fmt: skip


def quota(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find a CPU quota around the tool itself, such as that of a pod."""
    found = quota_around(run, measured)
    if found:
        yield RunWarning(
            WarningKind.QUOTA, "the machine",
            f"its trials had the time of {found[0]:g} of {len(run.host.cpus)} CPUs, a quota of their control group, "
            f"which was used up in {found[1]:.0%} of its periods",
            "measure without it, or with no more threads than that: `envmatrix docs cpu-limit`",
        )  # fmt: skip


def find_contended_blocks(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find blocks in which others had the CPUs, of a machine that most of the time was left alone."""
    shares = measured.disturbed()
    is_known = np.isfinite(shares)
    if not is_known.any() or float(np.median(shares[is_known])) > DISTURBED:
        return
    blocks = {
        int(block): float(np.median(of_block[block_known]))
        for block, of_block, block_known in zip(measured.blocks, shares.T, is_known.T, strict=True)
        if block_known.any()
    }
    contended_blocks = [block for block, share in blocks.items() if share > MUCH_DISTURBED]
    if contended_blocks:
        worst = max(contended_blocks, key=lambda block: blocks[block])
        yield RunWarning(
            WarningKind.DISTURBED,
            "the machine",
            f"{len(contended_blocks)} of {format_count(len(blocks), 'block')} were disturbed by other programs "
            f"(most, block {worst}: "
            f"threads waited for a CPU in {blocks[worst]:.0%} of the time in which they could have run)",
            "run `envmatrix doctor`: it names what runs beside; pairs cancel much of it, intervals are wider for it",
        )


def find_other_load(run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find a load that the trials, which run one at a time, cannot have made (in turns they start at once)."""
    if run.design.schedule == "turns":
        return
    load = measured.table["load_1m"]
    load = load[np.isfinite(load)]
    count = len(run.host.cpus)
    if count and load.size and float(np.median(load)) > 1.5 * count + 1:
        yield RunWarning(
            WarningKind.OTHER_LOAD, "the machine", f"its load was {np.median(load):.1f} on {count} CPUs",
            "end the other programs, or measure when they do not run",
        )  # fmt: skip


def find_other_node_users(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find, node by node, blocks before which others used it, while their job did nothing yet."""
    for node in dict.fromkeys(node for node, _ in measured.node_checks):
        checks = {block: check for (where, block), check in measured.node_checks.items() if where == node}
        busy_nodes = {block: check for block, check in checks.items() if (check.busy or 0) > BUSY}
        if not busy_nodes:
            continue
        block, check = max(busy_nodes.items(), key=lambda item: item[1].busy or 0)
        names = f" ({', '.join(check.others)} ran there)" if check.others else ""
        yield RunWarning(
            WarningKind.OTHER_LOAD,
            node,
            f"before {len(busy_nodes)} of the {format_count(len(checks), 'block')} that ran on it others used "
            "its CPUs; "
            f"the most, {check.busy:.0%} of all, before block {block}{printable_line(names, 200)}",
            "run it with `--busy 10%`, which hands such a block back; ask who else may use nodes that jobs have to "
            "themselves",
        )


def find_frequency_change(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find a CPU frequency that changed between trials, where it can be read."""
    speeds = measured.table["mhz"]
    speeds = speeds[np.isfinite(speeds) & (speeds > 0)]
    if speeds.size > 1 and float(np.ptp(speeds)) > FREQUENCY * float(speeds.max()):
        yield RunWarning(
            WarningKind.FREQUENCY, "the CPU", f"its frequency went from {speeds.min():.0f} to {speeds.max():.0f} MHz",
            "set the governor to performance and switch turbo off while measuring; `envmatrix doctor` says how",
        )  # fmt: skip


def find_unverifiable_environments(run: Run, _measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find environments that differ from their reference but claim nothing that evidence could contradict."""
    runs = {arm.name: arm.runs for arm in run.plan.arms}
    for arm in run.plan.arms:
        environment, reference = (run.environments.get(name) for name in (arm.runs, runs.get(arm.reference or "", "")))
        if (
            environment
            and reference
            and environment.levels != reference.levels
            and not environment.claims
            and not environment.variables
        ):
            yield RunWarning(
                WarningKind.UNVERIFIED, arm.environment, "its levels claim nothing that could be read back",
                "add `claims:` to its level, so that a trial in which it does not work is INVALID",
            )  # fmt: skip


def _causes(
    measured: Measurements, kind: WarningKind, texts: Callable[[ArmFacts], Counter[str]], remedy: str
) -> Iterator[RunWarning]:
    """Tell each cause once, of all environments, with a count of trials."""
    for cause in dict.fromkeys(text for fact in measured.facts.values() for text in texts(fact)):
        found = {name: fact for name, fact in measured.facts.items() if texts(fact)[cause]}
        number = sum(texts(fact)[cause] for fact in found.values())
        total = sum(fact.outcomes["ok"] for fact in found.values())
        yield RunWarning(
            kind, ", ".join(found), f"{printable_line(cause, 400)} ({number} of {format_count(total, 'trial')})", remedy
        )


def find_unproven_environments(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find what environments promise and nobody saw, though nothing contradicts it."""
    remedy = (
        "read in docs/workloads.md what can be seen of a program: its figures stand, but it is neither recommended "
        "nor in the best set"
    )
    yield from _causes(measured, WarningKind.UNPROVEN, lambda fact: fact.unproven, remedy)


def elsewhere(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find programs that may have handed their work to somebody whom neither clock nor environment reaches."""
    remedy = "run what does its work inside each trial, and let the program wait for it"
    yield from _causes(measured, WarningKind.ELSEWHERE, lambda fact: fact.elsewhere, remedy)


def without_gpu(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find programs that would have worked on a GPU."""
    remedy = "run `envmatrix doctor`, which looks for a GPU and its driver, unless you mean to measure the CPU"
    yield from _causes(measured, WarningKind.NO_GPU, lambda fact: fact.without_gpu, remedy)


def odd_processes(_run: Run, measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Find threads that were placed or doubled, and preloads that were lost, unknown to whoever reads the table."""
    found: dict[str, list[str]] = {}
    for name, fact in measured.facts.items():
        for text in fact.oddities:
            found.setdefault(text, []).append(name)
    for text, names in found.items():
        yield RunWarning(
            WarningKind.ODDITY, ", ".join(names), printable_line(text, 400),
            "read in docs/verdicts.md what to change, and why: its figures are those of a process like that",
        )  # fmt: skip


def shell(run: Run, _measured: Measurements, _analysis: Analysis) -> Iterator[RunWarning]:
    """Name what of the shell that began the run every environment had, or had not, that bears on speed."""
    names = sorted({name for one in run.workloads.values() for name in one.pass_env if find_reader(name)})
    if names:
        yield RunWarning(
            WarningKind.SHELL, "the shell", f"every environment had its {', '.join(names)}, unless a level sets it",
            "begin again in a shell without them to measure PyTorch as it comes",
        )  # fmt: skip
    if run.shell_preload:
        yield RunWarning(
            WarningKind.SHELL,
            "the shell",
            f"no environment had its LD_PRELOAD ({printable_line(run.shell_preload, 200)})",
            "write `preload:` in a level for what your program needs",
        )


#: A further check of the machine is one more entry here.
CHECKS: tuple[Callable[[Run, Measurements, Analysis], Iterator[RunWarning]], ...] = (
    find_drift,
    find_steal_time,
    quota,
    find_contention,
    find_contended_blocks,
    find_other_load,
    find_other_node_users,
    find_frequency_change,
    find_unverifiable_environments,
    find_unproven_environments,
    elsewhere,
    without_gpu,
    odd_processes,
    shell,
)

"""What one run of a user's own program showed that its user should know: the same sentences in every run of it."""

from __future__ import annotations

from collections.abc import Iterator

from envmatrix.record.evidence import Evidence

#: More of an own program's CPU time must not have gone where nobody could look (bench/evidence/programs.py).
UNSEEN = 0.1


def elsewhere(evidence: Evidence) -> Iterator[str]:
    """Say that work may have been done where neither the clock nor the environment of a trial reaches."""
    for name in evidence.left_running or ():
        yield f"it ended, but {name}, which it had started, ran on and was ended: what that does later is not timed"
    if evidence.served_by and not any(one.cuda and one.cuda.used for one in _all(evidence)):
        yield (
            f"it used a CPU for less than half of its time and was connected to {', '.join(evidence.served_by)}: "
            "no setting reaches what a server does there"
        )


def without_gpu(evidence: Evidence) -> Iterator[str]:
    """Say that a program looked for a GPU, did not find one and went on."""
    if any(one.cuda and one.cuda.looked_for and one.cuda.available is False for one in _all(evidence)):
        yield "it looked for a GPU, found none that PyTorch can use, and ran on the CPU"


def unverifiable(evidence: Evidence) -> Iterator[str]:
    """Say of which programs nothing will be verified, whatever an environment sets."""
    if (evidence.unseen_share or 0.0) > UNSEEN:
        yield (
            f"{evidence.unseen_share:.0%} of its CPU time was used by programs too short to be looked at: environments "
            "will be unproven (docs/workloads.md)"
        )
    names = sorted({
        str(program.name) for program in evidence.programs or ()
        if (seen := program.evidence or evidence).source == "outside" and seen.torch is None and _has_torch(seen)
    })  # fmt: skip
    if names:
        yield (
            f"{', '.join(names)} could not be asked what is in effect (it ended by os._exit or a signal, or runs with "
            "python -I or -S): OpenMP settings will be unproven"
        )


def _has_torch(evidence: Evidence) -> bool:
    return any("/libtorch_cpu.so" in path for path in evidence.libraries or ())


def _all(evidence: Evidence) -> list[Evidence]:
    return [evidence, *(program.evidence for program in evidence.programs or () if program.evidence)]

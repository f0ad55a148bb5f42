"""What the user's own program sets itself, such as its threads: environments that set the same cannot be tested."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from envmatrix.evidence.checks import Claim
from envmatrix.evidence.dotted_paths import SHORT_PATHS
from envmatrix.evidence.evidence_models import Evidence, OwnSetting
from envmatrix.system.regular_files import RefusedFileError, read_bytes

_LARGEST_SCRIPT = 2**20
_SETS_THREADS = ("torch.set_num_threads", "omp_set_num_threads")
_SETS_CPUS = "os.sched_setaffinity"
#: A shell's assignment to a variable. One that mentions the variable again keeps a value that is already set.
_ASSIGNMENT = re.compile(r"\s*(?:export\s+|env\s+)?((?:OMP|GOMP|KMP|MKL|OPENBLAS|MALLOC)_\w+)=([^\s;$`]*)(?=[\s;]|\Z)")


def own_settings(evidence: Evidence, scripts: Iterable[Path]) -> list[OwnSetting]:
    """Return what a program sets, from its evidence and from the shell ``scripts`` that it runs."""
    return [*(evidence.own_settings or ()), *(setting for file in scripts for setting in _assignments(file))]


def _assignments(script: Path) -> Iterator[OwnSetting]:
    """Yield the assignments to variables in a shell script."""
    if script.suffix != ".sh":
        return
    try:
        lines = read_bytes(script, _LARGEST_SCRIPT).decode(errors="replace").splitlines()
    except (OSError, RefusedFileError):
        return
    for number, line in enumerate(lines, 1):
        match = _ASSIGNMENT.match(line)
        if match:
            yield OwnSetting(name=match[1], value=match[2].strip("'\""), where=f"line {number} of {script.name}")


def find_conflict(
    settings: Iterable[OwnSetting],
    variables: Mapping[str, str | None],
    claims: Iterable[Claim] = (),
    cpus: str | None = None,
) -> str:
    """Return what of an environment or a level a program sets to something else itself, and in which line; or ''."""
    thread_claims = [claim for claim in claims if SHORT_PATHS.get(claim.path, claim.path) == SHORT_PATHS["threads"]]
    for setting in settings:
        name, value = setting.name or "", setting.value or ""
        if name in _SETS_THREADS:
            is_other = any(not claim.fits(int(value)) for claim in thread_claims if value.isdecimal())
        elif name == _SETS_CPUS:
            is_other = bool(cpus)
        else:
            is_other = variables.get(name, value) != value
        if is_other:
            verb = "sets" if name not in (*_SETS_THREADS, _SETS_CPUS) else "calls"
            return f"your program {verb} {name} itself ({setting.where})"
    return ""


def describe_conflicts(conflicts: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each cause in ``conflicts`` (name of an environment or level -> cause)."""
    for cause in dict.fromkeys(conflicts.values()):
        names = [name for name, own in conflicts.items() if own == cause]
        yield f"{cause}, so these cannot be tested: {', '.join(names)}"

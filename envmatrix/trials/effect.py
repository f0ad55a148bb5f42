"""Whether anything in the processes of a trial reads what its environment sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from envmatrix.evidence.evidence import Evidence
from envmatrix.matrix.readers import NOT_IN_EFFECT, Judge, Reader, reader_of


def without_reader(variables: Mapping[str, str | None], seen: Sequence[Evidence]) -> Iterator[str]:
    """Say of each variable whose reader is in none of a trial's programs that it is not in effect, and why.

    A program that could not be looked at may hold it: then that is said.
    """
    for name, value in variables.items():
        reader = None if value is None else reader_of(name)
        if reader is None:
            continue
        there = [_is_there(reader, one) for one in seen]
        if True in there:
            continue
        if None not in there:
            yield f"{NOT_IN_EFFECT}{name} is read by {reader.name}, and {_instead(reader, seen[0])}"
        elif any(one.source for one in seen):
            yield f"not verified: {name} is read by {reader.name}, and nothing shows that it is in the process"


def _is_there(reader: Reader, seen: Evidence) -> bool | None:
    """Say whether a program holds a reader, None where that cannot be told."""
    if reader.judge is Judge.OPENMP and seen.openmp and seen.openmp.library:
        found = {f"/{name}" for name in (seen.openmp.library, *(seen.openmp.workers or ()))}
        return any(one.startswith(reader.libraries) for one in found)
    if reader.judge is Judge.MALLOC and seen.malloc and seen.malloc.library:
        serves = f"/{seen.malloc.library}".startswith(tuple(part.rstrip(".-") for part in reader.libraries))
        return serves or (None if seen.source == "outside" else False)  # a program may have one of its own inside
    if reader.judge is Judge.GPU and seen.cuda and seen.cuda.available is False:
        return False
    if reader.judge is Judge.INDUCTOR and seen.torch and seen.torch.version:
        return bool(seen.inductor and seen.inductor.graphs)
    if seen.libraries is None:
        return None
    parts = tuple(part for part in reader.libraries if part != "/libtorch_cpu" or _in_torch(reader, seen))
    return any(part in path for path in seen.libraries for part in parts)


def _in_torch(reader: Reader, seen: Evidence) -> bool:
    """Say whether this PyTorch may hold MKL or oneDNN inside; which one has only what it says of itself."""
    held = seen.torch and {Judge.MKL: seen.torch.mkl, Judge.ONEDNN: seen.torch.onednn}.get(reader.judge)
    return held is not False


def _instead(reader: Reader, seen: Evidence) -> str:
    if reader.judge is Judge.OPENMP and seen.openmp and seen.openmp.library:
        return f"{seen.openmp.library} serves this program"
    if reader.judge is Judge.MALLOC and seen.malloc and seen.malloc.library:
        return f"{seen.malloc.library} serves malloc"
    if reader.judge is Judge.GPU and seen.cuda and seen.cuda.available is False:
        return "there is no GPU"
    if reader.judge is Judge.INDUCTOR and seen.torch:
        return "nothing was compiled"
    return "no program loads it"

"""Check whether a trial's programs read the variables that its environment sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from envmatrix.evidence.evidence import Evidence
from envmatrix.matrix.readers import NOT_IN_EFFECT, PresenceTest, Reader, find_reader


def unread_variable_texts(variables: Mapping[str, str | None], program_evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yield a message for each variable that none of a trial's programs reads, with the reason.

    If a program could not be inspected, the message is that the variable is not verified.
    """
    for name, value in variables.items():
        reader = None if value is None else find_reader(name)
        if reader is None:
            continue
        loaded = [_is_reader_loaded(reader, evidence) for evidence in program_evidence]
        if True in loaded:
            continue
        if None not in loaded:
            yield (
                f"{NOT_IN_EFFECT}{name} is read by {reader.name}, but "
                f"{_actual_library_text(reader, program_evidence[0])}"
            )
        elif any(evidence.source for evidence in program_evidence):
            yield f"not verified: {name} is read by {reader.name}, which was not seen in the process"


def _is_reader_loaded(reader: Reader, evidence: Evidence) -> bool | None:
    """Return whether a program contains a reader, None if unknown."""
    if reader.presence_test is PresenceTest.OPENMP and evidence.openmp and evidence.openmp.library:
        library_paths = {f"/{name}" for name in (evidence.openmp.library, *(evidence.openmp.workers or ()))}
        return any(library.startswith(reader.libraries) for library in library_paths)
    if reader.presence_test is PresenceTest.MALLOC and evidence.malloc and evidence.malloc.library:
        is_serving = f"/{evidence.malloc.library}".startswith(tuple(part.rstrip(".-") for part in reader.libraries))
        return is_serving or (
            None if evidence.source == "outside" else False
        )  # a program may contain its own allocator
    if reader.presence_test is PresenceTest.GPU and evidence.cuda and evidence.cuda.available is False:
        return False
    if reader.presence_test is PresenceTest.INDUCTOR and evidence.torch and evidence.torch.version:
        return bool(evidence.inductor and evidence.inductor.graphs)
    if evidence.libraries is None:
        return None
    parts = tuple(part for part in reader.libraries if part != "/libtorch_cpu" or _may_be_in_torch(reader, evidence))
    return any(part in path for path in evidence.libraries for part in parts)


def _may_be_in_torch(reader: Reader, evidence: Evidence) -> bool:
    """Return whether this PyTorch may contain MKL or oneDNN; only its own report can rule that out."""
    reported = evidence.torch and {
        PresenceTest.MKL: evidence.torch.mkl,
        PresenceTest.ONEDNN: evidence.torch.onednn,
    }.get(reader.presence_test)
    return reported is not False


def _actual_library_text(reader: Reader, evidence: Evidence) -> str:
    if reader.presence_test is PresenceTest.OPENMP and evidence.openmp and evidence.openmp.library:
        return f"this program uses {evidence.openmp.library}"
    if reader.presence_test is PresenceTest.MALLOC and evidence.malloc and evidence.malloc.library:
        return f"{evidence.malloc.library} provides malloc"
    if reader.presence_test is PresenceTest.GPU and evidence.cuda and evidence.cuda.available is False:
        return "there is no GPU"
    if reader.presence_test is PresenceTest.INDUCTOR and evidence.torch:
        return "nothing was compiled"
    return "no program loads it"

"""Fast reader for the lines of trials.jsonl. Text that many lines share is parsed and stored once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json

from envmatrix.evidence.base import Part
from envmatrix.evidence.evidence import Evidence
from envmatrix.evidence.record import Record
from envmatrix.results.trial import Reading, Trial, trial_from_line

_START, _RECORD, _EVIDENCE, _END = b'{"schema":', b',"record":{', b',"evidence":{', b"}}}"
#: Split points of a record and its evidence: the text before each is either the same in most trials, or in none.
_RECORD_CUTS = (b',"skipped":', b',"result":', b',"profile":')
_EVIDENCE_CUTS = (b',"system":', b',"onednn":', b',"preloaded":')
_STEP_TIME_KEYS = (b'"steps_ns":[', b'"epochs_ns":[')
#: The most different pieces in the cache, which is then emptied.
_MAX_PIECES = 512
#: For how many pieces to remember that they occurred.
_MAX_MET = 8192
_READING = TypeAdapter(Reading)
M = TypeVar("M", bound=Part)


class LineReader:
    """Reads the lines of one file. Its trials share objects for equal text, so do not modify them."""

    def __init__(self) -> None:
        self._records: _PartReader[Record] = _PartReader(Record, _RECORD_CUTS)
        self._evidence: _PartReader[Evidence] = _PartReader(Evidence, _EVIDENCE_CUTS)

    def read(self, line: bytes, file: Path, number: int) -> Reading | Trial:
        """Return a line's trial without its raw step times; a Trial if its record has invalid values."""
        for parse in (self._parse_parts, _parse_whole) if line.startswith(_START) else ():
            try:
                return parse(line)
            except ValueError:  # invalid values are left out below, or reported
                continue
        return trial_from_line(_without_step_times(line).decode(errors="replace"), file, number)

    def _parse_parts(self, line: bytes) -> Reading:
        """Parse a line that ends with its record, whose last member is its evidence, as envmatrix writes them.

        Every piece must be a valid object; a line that was split at a wrong place raises ValueError.
        """
        head, _, rest = line.rstrip().partition(_RECORD)
        record, _, evidence = rest.partition(_EVIDENCE)
        if not evidence.endswith(_END):
            return _parse_whole(line)
        parsed_evidence = self._evidence.read(evidence[: -len(_END)], {})
        parsed_record = self._records.read(_without_step_times(record), {"evidence": parsed_evidence})
        return _READING.validate_python({**from_json(head + b"}"), "record": parsed_record})


class _PartReader(Generic[M]):
    """Reads objects of one model from the text of their members, and parses a piece that many trials share twice."""

    def __init__(self, model: type[M], cuts: Sequence[bytes]) -> None:
        self._model, self._cuts, self._empty = model, cuts, model()
        self._cache: dict[bytes, Mapping[str, object]] = {}
        self._met: set[int] = set()

    def read(self, members: bytes, more: Mapping[str, object]) -> M:
        values: dict[str, object] = {}
        for piece in _split_pieces(members, self._cuts):
            values.update(self._cache.get(piece) or self._read(piece))
        return self._empty.model_copy(update={**values, **more})

    def _read(self, piece: bytes) -> Mapping[str, object]:
        part = self._model.model_validate_json(b"{%b}" % piece)
        values = {name: getattr(part, name) for name in part.model_fields_set}
        self._keep(piece, values)
        return values

    def _keep(self, piece: bytes, values: Mapping[str, object]) -> None:
        """Keep a piece that occurs for the second time: those of only one trial would push out the others."""
        if hash(piece) not in self._met:
            if len(self._met) >= _MAX_MET:
                self._met.clear()
            self._met.add(hash(piece))
            return
        if len(self._cache) >= _MAX_PIECES:
            self._cache.clear()
        self._cache[piece] = values


def _parse_whole(line: bytes) -> Reading:
    return _READING.validate_json(_without_step_times(line))


def _split_pieces(text: bytes, cuts: Sequence[bytes]) -> Iterator[bytes]:
    """Split the members of an object before each of ``cuts`` that occurs."""
    for cut in cuts:
        piece, separator, rest = text.partition(cut)
        if separator:
            yield piece
            text = cut[1:] + rest
    yield text


def _without_step_times(line: bytes) -> bytes:
    """Remove the raw step times from a line: they are 90 % of its size, and are not needed here.

    The searched text cannot be inside a JSON string, where its quotes would be escaped.
    """
    for key in _STEP_TIME_KEYS:
        start = line.find(key)
        if start >= 0:
            end = line.find(b"]", start)
            line = line[: start + len(key)] + line[end:]
    return line

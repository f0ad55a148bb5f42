"""Fast reader for the lines of trials.jsonl. Text that many lines share is parsed and stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter
from pydantic_core import from_json

from envmatrix.evidence.base import Part
from envmatrix.evidence.evidence import Evidence
from envmatrix.evidence.record import Record
from envmatrix.results.trial import Reading, Trial, trial_from_line

_START, _RECORD = b'{"schema":', b',"record":{'
#: Split points of a record and its evidence, each before a key: the text between two is either the same in most trials,
#: or in none. The last of each is its end.
_RECORD_CUTS = (b',"skipped":', b',"result":', b',"profile":', b',"evidence":{')
_EVIDENCE_CUTS = (b',"system":', b',"onednn":', b',"preloaded":', b"}}}\n")
_STEP_TIME_KEYS = (b'"steps_ns":[', b'"epochs_ns":[')
_TURNS, _NEXT_TURN, _END_OF_TURNS = b'"turns":[{', b"},{", b"}]"
#: The most texts to keep between two split points.
_MAX_PIECES = 128
#: For how many texts to remember that they occurred.
_MAX_MET = 8192
#: A text up to and with a split point, and the values in it by key.
Piece = tuple[bytes, Mapping[str, object]]
_READING = TypeAdapter(Reading)
_NO_RECORD, _NO_EVIDENCE = Record(), Evidence()


class LineReader:
    """Reads the lines of one file. Its trials share objects for equal text, so do not modify them."""

    def __init__(self) -> None:
        self._records = _PartReader(Record, _RECORD_CUTS)
        self._evidence = _PartReader(Evidence, _EVIDENCE_CUTS)

    def read(self, line: bytes, file: Path, number: int) -> Reading | Trial:
        """Return a line's trial without the times of its steps; a whole Trial if its record has invalid values."""
        for parse in (self._parse_parts, _parse_whole) if line.startswith(_START) else ():
            try:
                return parse(line)
            except ValueError:  # invalid values are left out below, or reported
                continue
        return trial_from_line(line.decode(errors="replace"), file, number)

    def _parse_parts(self, line: bytes) -> Reading:
        """Parse a line that ends with its record, whose last member is its evidence, as envmatrix writes them.

        Every piece must be a valid object; a line that was split at a wrong place raises ValueError.
        """
        at = line.index(_RECORD)
        head = from_json(line[:at] + b"}")
        values, at = self._records.read(line, at + len(_RECORD))
        evidence, _ = self._evidence.read(line, at)
        values["evidence"] = _NO_EVIDENCE.model_copy(update=evidence)
        return _READING.validate_python({**head, "record": _NO_RECORD.model_copy(update=values)})


class _PartReader:
    """Reads the members of one object in pieces. A piece that trials share is parsed twice, and then recognized."""

    def __init__(self, model: type[Part], cuts: Sequence[bytes]) -> None:
        self._model, self._end = model, cuts[-1]
        self._known: dict[bytes, list[Piece]] = {cut: [] for cut in cuts}
        self._met: set[int] = set()

    def read(self, line: bytes, at: int) -> tuple[dict[str, object], int]:
        """Return the values of the members from ``at`` on by key, and where they end."""
        values: dict[str, object] = {}
        for cut, known in self._known.items():
            piece = _recognize(known, line, at)
            if piece is None:
                end = line.index(cut, at) if cut == self._end else line.find(cut, at)
                if end < 0:  # the member after this cut is missing
                    continue
                piece = self._parse(line[at : end + len(cut)], cut)
                self._keep(piece, known)
            text, found = piece
            values.update(found)
            at += len(text) - (0 if cut == self._end else len(cut) - 1)
        return values, at

    def _parse(self, text: bytes, cut: bytes) -> Piece:
        part = self._model.model_validate_json(b"{%b}" % _without_step_times(text.removesuffix(cut)))
        return text, {name: getattr(part, name) for name in part.model_fields_set}

    def _keep(self, piece: Piece, known: list[Piece]) -> None:
        """Keep a piece that occurs for the second time: those of only one trial would push out the others."""
        text_hash = hash(piece[0])
        if text_hash in self._met:
            known.insert(0, piece)
            del known[_MAX_PIECES:]
            return
        if len(self._met) >= _MAX_MET:
            self._met.clear()
        self._met.add(text_hash)


def _recognize(known: Sequence[Piece], line: bytes, at: int) -> Piece | None:
    for piece in known:
        if line.startswith(piece[0], at):
            return piece
    return None


def _parse_whole(line: bytes) -> Reading:
    return _READING.validate_json(_without_step_times(line))


def _without_step_times(text: bytes) -> bytes:
    """Remove the raw step times and all turns between the first and the last: 90 % of a line, not needed here.

    The searched text cannot be inside a JSON string, where its quotes would be escaped.
    """
    for key in _STEP_TIME_KEYS:
        start = text.find(key)
        if start >= 0:
            end = text.find(b"]", start)
            text = text[: start + len(key)] + text[end:]
    start = text.find(_TURNS)
    last = text.rfind(_NEXT_TURN, start, text.find(_END_OF_TURNS, start)) if start >= 0 else -1
    return text[: text.find(_NEXT_TURN, start)] + text[last:] if last >= 0 else text

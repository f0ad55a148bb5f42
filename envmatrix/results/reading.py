"""Fast reader for the lines of trials.jsonl. Text that many lines share is parsed and stored once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple

from pydantic import TypeAdapter

from envmatrix.evidence.evidence import Evidence, System
from envmatrix.evidence.record import Read, Record
from envmatrix.results.trial import Reading, Trial, trial_from_line

_START, _RECORD, _EVIDENCE, _END = b'{"schema":', b',"record":{', b'"evidence":{', b"}}\n"
#: Split points of a record and its evidence, each before a key: the text between two is either the same in most trials,
#: or in none. The last is the end.
_RECORD_CUTS = (b',"skipped":', b',"result":', b',"profile":', b',"timing":', b',"evidence":{')
_EVIDENCE_CUTS = (b',"preloaded":', b"}}}\n")
#: The evidence's ``system``, the first of its values that differ between trials, and its end.
_SYSTEM, _CONDITIONS, _END_OF_CONDITIONS = b',"system":', b',"uptime_s":', b"},"
_STEP_TIME_KEYS = (b'"steps_ns":[', b'"epochs_ns":[')
_TURNS, _NEXT_TURN, _END_OF_TURNS = b'"turns":[{', b"},{", b"}]"
_DIFFERING = frozenset({"uptime_s", "load_1m", "steal_ticks", "mhz"})
#: The most texts to keep between two split points.
_MAX_PIECES = 128
#: For how many texts to remember that they occurred.
_MAX_MET = 8192
_MAX_EVIDENCE = 256
_parse_reading = TypeAdapter(Reading).validator.validate_json
_parse_conditions = System.__pydantic_validator__.validate_json


class _Piece(NamedTuple):
    """A text up to and with a split point, and its values: those of the model, and others."""

    text: bytes
    values: Mapping[str, object]
    others: Mapping[str, object] | None


class LineReader:
    """Reads the lines of one file. Its trials share objects for equal text, so do not modify them."""

    def __init__(self) -> None:
        self._records, self._evidence = _PartReader(Record), _PartReader(Evidence)
        self._known: dict[tuple[int, ...], tuple[list[_Piece], Evidence]] = {}

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
        trial: Reading = _parse_reading(line[:at] + b"}")
        pieces, at = self._records.read(line, at + len(_RECORD), _RECORD_CUTS)
        if not line.startswith(_EVIDENCE, at):
            raise ValueError(_EVIDENCE)
        evidence, conditions = self._read_evidence(line, at + len(_EVIDENCE))
        record = self._records.join(pieces)
        vars(record)["evidence"] = evidence
        vars(trial).update(record=record, conditions=conditions)
        return trial

    def _read_evidence(self, line: bytes, at: int) -> tuple[Evidence, System | None]:
        """Return the evidence, which trials share, and the values of its system that differ between them."""
        pieces, at = self._evidence.read(line, at, (_SYSTEM,))
        system, conditions = self._evidence.find(line, at, _CONDITIONS, b"}}"), None
        if system:
            _check_system(system)
            start = at + len(system.text) - len(_CONDITIONS) + 1
            end = line.index(_END_OF_CONDITIONS, start)
            conditions, at = _parse_conditions(b"{%b}" % line[start:end]), end + len(_END_OF_CONDITIONS)
            pieces.append(system)
        rest, at = self._evidence.read(line, at, _EVIDENCE_CUTS)
        if line[at:] != _END:
            raise ValueError(_END)
        pieces += rest
        key = tuple(map(id, pieces))
        if key not in self._known:
            if len(self._known) >= _MAX_EVIDENCE:
                self._known.clear()
            self._known[key] = pieces, self._evidence.join(pieces)  # kept, so that no other gets their identity
        return self._known[key][1], conditions


class _PartReader(Generic[Read]):
    """Reads the members of one object in pieces. A piece that trials share is parsed twice, and then recognized."""

    def __init__(self, model: type[Read]) -> None:
        self._fields, self._parse_json = model.model_fields, model.__pydantic_validator__.validate_json
        self._known: defaultdict[bytes, list[_Piece]] = defaultdict(list)
        self._met: set[int] = set()

    def read(self, line: bytes, at: int, cuts: Sequence[bytes]) -> tuple[list[_Piece], int]:
        """Return the pieces of the members from ``at`` on, up to the last of the ``cuts``, and where they end."""
        pieces = []
        for cut in cuts:
            piece = self.find(line, at, cut)
            if piece:
                pieces.append(piece)
                at += len(piece.text) - len(cut) + 1
        return pieces, at

    def find(self, line: bytes, at: int, cut: bytes, closing: bytes = b"}") -> _Piece | None:
        """Return the piece from ``at`` to a cut, which ``closing`` makes an object; None if there is no such cut."""
        known = self._known[cut]
        for piece in known:
            if line.startswith(piece.text, at):
                return piece
        end = line.find(cut, at)
        if end < 0:  # the member after this cut is missing
            return None
        piece = self._parse(line[at : end + len(cut)], line[at:end], closing)
        self._keep(piece, known)
        return piece

    def join(self, pieces: Sequence[_Piece]) -> Read:
        """Return a new part with the values of the pieces."""
        part: Read = self._parse_json(b"{}")
        for piece in pieces:
            vars(part).update(piece.values)
            part.__pydantic_fields_set__.update(piece.values)
            if piece.others and part.__pydantic_extra__ is not None:
                part.__pydantic_extra__.update(piece.others)
        return part

    def _parse(self, text: bytes, members: bytes, closing: bytes) -> _Piece:
        part = self._parse_json(b"{%b%b" % (_without_step_times(members), closing))
        values = vars(part)
        return _Piece(text, {name: values[name] for name in part.model_fields_set if name in values}, part.model_extra)

    def _keep(self, piece: _Piece, known: list[_Piece]) -> None:
        """Keep a piece that occurs for the second time: those of only one trial would push out the others."""
        text_hash = hash(piece.text)
        if text_hash in self._met:
            known.insert(0, piece)
            del known[_MAX_PIECES:]
            return
        if len(self._met) >= _MAX_MET:
            self._met.clear()
        self._met.add(text_hash)


def _check_system(piece: _Piece) -> None:
    """Raise ValueError if the split point after a piece is in another object, or not before all that differs."""
    system = piece.values.get("system")
    if len(piece.values) > 1 or piece.others or not isinstance(system, System):
        raise ValueError(piece.text)
    if not _DIFFERING.isdisjoint(system.__pydantic_fields_set__):
        raise ValueError(piece.text)


def _parse_whole(line: bytes) -> Reading:
    reading: Reading = _parse_reading(_without_step_times(line))
    return reading


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

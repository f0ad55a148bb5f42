"""Fast reader for the lines of trials.jsonl. Text that many lines share is parsed and stored once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple

from pydantic import TypeAdapter

from envmatrix.evidence.evidence_models import Evidence, System
from envmatrix.evidence.trial_record import Read, Record
from envmatrix.results.trial import Reading, Trial, TrialFacts, trial_from_line

_START, _RECORD, _EVIDENCE, _END = b'{"schema":', b',"record":{', b'"evidence":{', b"}}\n"
#: Split points of a record and its evidence, each before a key: the text between two is either the same in most trials,
#: or in none. The last is the end.
_RECORD_CUTS = (b',"skipped":', b',"result":', b',"profile":', b',"timing":', b',"evidence":{')
_EVIDENCE_CUTS = (b',"preloaded":', b"}}}\n")
#: The evidence's ``system``, the first of its values that differ between trials, and its end.
_SYSTEM, _UPTIME, _END_OF_CONDITIONS = b',"system":', b'"uptime_s":', b"},"
_CONDITIONS = b"," + _UPTIME
_STEP_TIME_KEYS = (b'"steps_ns":[', b'"epochs_ns":[')
_TURNS, _NEXT_TURN, _END_OF_TURNS = b'"turns":[{', b"},{", b"}]"
_DIFFERING = frozenset({"uptime_s", "load_1m", "steal_ticks", "mhz"})
#: The most texts to keep between two split points.
_MAX_PIECES = 128
#: For how many texts to remember that they occurred.
_MAX_MET = 8192
_MAX_EVIDENCE = 256
#: For how many environments to remember how many texts around what is new in a line.
_MAX_ENVIRONMENTS, _MAX_LAYOUTS = 256, 4
_parse_reading = TypeAdapter(Reading).validator.validate_json
_parse_conditions = System.__pydantic_validator__.validate_json


class _Piece(NamedTuple):
    """A text up to and with a split point, and its values: those of the model, and others."""

    text: bytes
    values: Mapping[str, object]
    others: Mapping[str, object] | None


class _Layout(NamedTuple):
    """The text of a line around its trial's own members and conditions, and the other members of its record."""

    before: bytes
    middle: bytes
    after: bytes
    values: Mapping[str, object]


class LineReader:
    """Reads the lines of one file. Its trials share objects for equal text, so do not modify them."""

    def __init__(self) -> None:
        self._records, self._evidence = _PartReader(Record), _PartReader(Evidence)
        self._known: dict[tuple[int, ...], tuple[list[_Piece], Evidence]] = {}
        self._layouts: dict[str, list[_Layout]] = {}
        self._newest: dict[str, Evidence] = {}

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
        at += len(_RECORD)
        parsed = self._read_known(line, at, trial.environment) or self._read_new(line, at, trial.environment)
        vars(trial).update(record=parsed[0], conditions=parsed[1])
        return trial

    def _read_known(self, line: bytes, at: int, environment: str) -> tuple[Record, System] | None:
        """Return the record at ``at`` and its conditions if the text around them is that of an earlier line."""
        for before, middle, after, values in self._layouts.get(environment, ()):
            if line.endswith(after) and line.startswith(before, at):
                start = at + len(before)
                end = line.find(_RECORD_CUTS[-1], start)
                if line.startswith(middle, end):
                    record = self._records.parse(line[start:end])
                    if record.model_fields_set and record.model_fields_set.isdisjoint(values):
                        vars(record).update(values)
                        return record, _parse_conditions(b"{%b%b}" % (_UPTIME, line[end + len(middle) : -len(after)]))
        return None

    def _read_new(self, line: bytes, at: int, environment: str) -> tuple[Record, System | None]:
        """Return the record at ``at`` and its conditions; remember the text around them if its evidence is known."""
        pieces, own = self._records.read(line, at, _RECORD_CUTS[:2])
        own_pieces, end = self._records.read(line, own, _RECORD_CUTS[2:])
        if not line.startswith(_EVIDENCE, end):
            raise ValueError(_EVIDENCE)
        evidence, start, stop = self._read_evidence(line, end + len(_EVIDENCE))
        record = self._records.join([*pieces, *own_pieces])
        vars(record)["evidence"] = evidence
        if start == stop:
            return record, None
        if evidence is self._newest.get(environment) and not any(piece.others for piece in pieces):
            values = {name: value for piece in pieces for name, value in piece.values.items()}
            start_of_value = start + len(_UPTIME)
            self._remember(environment, _Layout(
                line[at:own], line[end - 1 : start_of_value], line[stop:], {**values, "evidence": evidence}
            ))  # fmt: skip
        self._newest[environment] = evidence
        return record, _parse_conditions(b"{%b}" % line[start:stop])

    def _remember(self, environment: str, layout: _Layout) -> None:
        if len(self._layouts) >= _MAX_ENVIRONMENTS:
            self._layouts.clear()
        self._layouts[environment] = [layout, *self._layouts.get(environment, ())][:_MAX_LAYOUTS]

    def _read_evidence(self, line: bytes, at: int) -> tuple[Evidence, int, int]:
        """Return the evidence, which trials share, and where the values of its system that differ are in the line."""
        pieces, at = self._evidence.read(line, at, (_SYSTEM,))
        system, start, stop = self._evidence.find(line, at, _CONDITIONS, b"}}"), at, at
        if system:
            _check_system(system)
            start = at + len(system.text) - len(_UPTIME)
            stop = line.index(_END_OF_CONDITIONS, start)
            at = stop + len(_END_OF_CONDITIONS)
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
        return self._known[key][1], start, stop


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
            if piece.others and part.__pydantic_extra__ is not None:
                part.__pydantic_extra__.update(piece.others)
        return part

    def parse(self, members: bytes, closing: bytes = b"}") -> Read:
        """Return a part with these members."""
        part: Read = self._parse_json(b"{%b%b" % (_without_step_times(members), closing))
        return part

    def _parse(self, text: bytes, members: bytes, closing: bytes) -> _Piece:
        part = self.parse(members, closing)
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


def read_facts(line: bytes, file: Path, number: int) -> TrialFacts:
    """Return a line's trial; its record is not parsed if it is the last member, as envmatrix writes it."""
    at = line.find(_RECORD)
    if line.startswith(_START) and line.endswith(_END) and at > 0:
        try:
            facts: Reading = _parse_reading(line[:at] + b"}")
        except ValueError:  # reported below
            pass
        else:
            return facts
    return trial_from_line(line.decode(errors="replace"), file, number)


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

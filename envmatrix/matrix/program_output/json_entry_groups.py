"""Numbers of an indented JSON list whose entries measure different things, such as models or batch sizes."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from envmatrix.matrix.program_output.speed_numbers import Reading

_MEMBER = re.compile(r'\s*"(?P<key>[^"]+)": (?P<value>"[^"]*"|-?[0-9.]+),?\s*')
#: Members that say what an entry measures, and those that count the entries of a training's log.
_NAMES = ("name", "model", "benchmark", "config", "case", "backend", "dtype", "variant", "kernel", "workload")
_SETTINGS = ("batch_size", "seq_len", "threads", "num_threads", "workers", "num_workers")
_DEVICES = ("gpu", "device", "rank", "local_rank", "gpu_id", "device_id", "node")
_COUNTERS = ("epoch", "step", "iter", "iteration", "global_step", "round")
#: More different entries are steps, not things.
_MOST_ENTRIES = 20


def group_json_entries_by_name(lines: Sequence[str], readings: Sequence[Reading]) -> list[list[Reading]]:
    """Return the numbers grouped by what their entries measure; [] if they are no such list.

    ``lines`` is the whole output. Each thing must be measured equally often, and not be numbered like steps.
    """
    if len(readings) < 2 or not all(_MEMBER.fullmatch(reading.line) for reading in readings):
        return []
    entries = [_fields_of_object_at(lines, reading.number) for reading in readings]
    keys = [key for key in (*_NAMES, *_SETTINGS, *_DEVICES) if _tells_apart([entry.get(key, "") for entry in entries])]
    groups: dict[tuple[str, ...], list[Reading]] = {}
    for entry, reading in zip(entries, readings, strict=True):
        groups.setdefault(tuple(entry[key] for key in keys), []).append(reading)
    is_log = len(groups) == len(readings) and any(len({entry.get(key) for entry in entries}) > 1 for key in _COUNTERS)
    return list(groups.values()) if len(groups) > 1 and not is_log else []


def _fields_of_object_at(lines: Sequence[str], number: int) -> Mapping[str, str]:
    """Return the members of the object that contains a line."""
    indent = _indent(lines[number])
    around = (range(number, -1, -1), range(number + 1, len(lines)))
    inside = (itertools.takewhile(lambda n: _indent(lines[n]) >= indent, numbers) for numbers in around)
    found = (_MEMBER.fullmatch(lines[n]) for n in itertools.chain(*inside) if _indent(lines[n]) == indent)
    return {member["key"]: member["value"] for member in found if member}


def _tells_apart(values: Sequence[str]) -> bool:
    """Return whether values name different things: each equally often, and not as ckpt-1, ckpt-2, ckpt-3."""
    counts = Counter(values)
    if "" in counts or not 1 < len(counts) <= _MOST_ENTRIES or len({*counts.values()}) > 1:
        return False
    numbers = [int(digits) for digits in (re.sub(r"\D", "", value)[:9] for value in counts) if digits]
    is_numbered = len({re.sub(r"\d+", "", value) for value in counts}) == 1 and values[0].startswith('"')
    return not (is_numbered and all(later == earlier + 1 for earlier, later in itertools.pairwise(numbers)))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

"""A reader of ELF files: which symbols a program or library defines for others, and which it takes from them.

System V ABI, "Dynamic Section"; GNU's hash table: https://flapenguin.me/elf-dt-gnu-hash
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_NEEDED, _STRTAB, _SYMTAB, _GNU_HASH = 1, 5, 6, 0x6FFFFEF5
_JUMPS, _JUMPS_BYTES = 23, 2
_TABLES = (_STRTAB, _SYMTAB, _GNU_HASH, _JUMPS, _JUMPS_BYTES)
_SYMBOL_BYTES = 24


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    bytes: int


def defines(path: str, symbol: str) -> bool:
    """Return whether a 64-bit little-endian ELF file exports ``symbol``. Raises OSError or ValueError if unreadable."""
    with _opened(path) as (content, segments, tables):
        if not {_STRTAB, _SYMTAB, _GNU_HASH} <= set(tables):
            return False
        offsets = {tag: _offset(address, segments) for tag, address in tables.items()}
        return _is_in_hash_table(content, symbol.encode(), offsets[_GNU_HASH], offsets[_SYMTAB], offsets[_STRTAB])


def jump_slot(path: str, symbol: str) -> int | None:
    """Return the offset, from the load address, of a file's jump slot for an external function; None if it has none."""
    with _opened(path) as (content, segments, tables):
        if not {_STRTAB, _SYMTAB, _JUMPS, _JUMPS_BYTES} <= set(tables):
            return None
        names, symbols, jumps = (_offset(tables[tag], segments) for tag in (_STRTAB, _SYMTAB, _JUMPS))
        for place, info, _ in struct.iter_unpack("<QQq", content[jumps : jumps + tables[_JUMPS_BYTES]]):
            (name,) = struct.unpack_from("<I", content, symbols + (info >> 32) * _SYMBOL_BYTES)
            if content[names + name : names + name + len(symbol) + 1] == symbol.encode() + b"\0":
                return int(place)
    return None


def needed_libraries(path: str) -> list[str] | None:
    """Return the names of the libraries that a program's file needs; None if it has no loader (statically linked).

    Raises OSError or ValueError if the file cannot be read.
    """
    with _opened(path) as (content, segments, tables):
        if all(segment.kind != _PT_INTERP for segment in segments):
            return None
        names = _offset(tables[_STRTAB], segments)
        starts = [names + value for tag, value in _dynamic(content, segments) if tag == _NEEDED]
        return [content[start : content.find(b"\0", start)].decode() for start in starts]


@contextmanager
def _opened(path: str) -> Iterator[tuple[mmap.mmap, list[_Segment], dict[int, int]]]:
    """Yield a file's content, its segments, and the addresses of its tables."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        segments = _segments(content)
        yield content, segments, {tag: value for tag, value in _dynamic(content, segments) if tag in _TABLES}


def _segments(content: mmap.mmap) -> list[_Segment]:
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    (start,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    segments = []
    for number in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", content, start + number * size)
        segments.append(_Segment(kind, offset, address, length))
    return segments


def _dynamic(content: mmap.mmap, segments: list[_Segment]) -> Iterator[tuple[int, int]]:
    for segment in segments:
        if segment.kind == _PT_DYNAMIC:
            for at in range(segment.offset, segment.offset + segment.bytes, 16):
                yield struct.unpack_from("<qQ", content, at)


def _offset(address: int, segments: list[_Segment]) -> int:
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.bytes:
            return address - segment.address + segment.offset
    raise ValueError("a table is in no segment")


def _is_in_hash_table(content: mmap.mmap, symbol: bytes, table: int, symbols: int, names: int) -> bool:
    count, first_symbol, words, _ = struct.unpack_from("<4I", content, table)
    buckets = table + 16 + 8 * words
    symbol_hash = _hash(symbol)
    (index,) = struct.unpack_from("<I", content, buckets + 4 * (symbol_hash % count))
    while index >= first_symbol:
        (chain_hash,) = struct.unpack_from("<I", content, buckets + 4 * count + 4 * (index - first_symbol))
        name, _, _, section = struct.unpack_from("<IBBH", content, symbols + index * _SYMBOL_BYTES)
        full_name = content[names + name : names + name + len(symbol) + 1]
        if chain_hash | 1 == symbol_hash | 1 and section and full_name == symbol + b"\0":
            return True
        if chain_hash & 1:
            return False
        index += 1
    return False


def _hash(symbol: bytes) -> int:
    value = 5381
    for character in symbol:
        value = (value * 33 + character) & 0xFFFFFFFF
    return value

"""The OpenMP runtimes whose threads exist: a runtime that is loaded, or even selected, may never be used.

A runtime starts its own workers, so its code is at the bottom of their stacks. Threads started by other libraries
(OpenBLAS, PyTorch for gradients) have that library there.
"""

from __future__ import annotations

import collections
import os
import re
import struct
import time
from bisect import bisect_right
from typing import NamedTuple

from bench.evidence import symbol_resolution

_RUNTIMES = ("libgomp", "libiomp5", "libomp")
#: Libraries below a thread's starting library on its stack: the C library and the loader.
_BELOW = re.compile(r"/(libc|libpthread|ld-linux|ld)[-.]")
_STACK_BYTES = 1 << 16
#: Workers spin before they sleep (libiomp5 for 0.2 s); the stack pointer of a running thread cannot be read.
_TRIES, _PAUSE_S = 6, 0.06


class _Map(NamedTuple):
    start: int
    end: int
    rights: str
    path: str


def workers() -> dict[str, int]:
    """Return the number of threads that each OpenMP runtime started, without the thread that leads a team.

    Raises OSError if this process may not read its own memory.
    """
    for _ in range(_TRIES):
        counts, running = _count_workers(os.getpid())
        if not running:
            break
        time.sleep(_PAUSE_S)
    return dict(sorted(counts.items()))


def workers_of(pid: int) -> dict[str, int]:
    """Return the current counts for another process. Raises OSError if it is gone or may not be read."""
    return dict(sorted(_count_workers(pid)[0].items()))


def _count_workers(pid: int) -> tuple[collections.Counter[str], int]:
    folder, counts, running, stacks = f"/proc/{pid}", collections.Counter[str](), 0, set()
    maps = _read_maps(folder)
    with open(f"{folder}/mem", "rb", 0) as memory:
        for task in os.listdir(f"{folder}/task"):
            stack_pointer = _stack_pointer(f"{folder}/task/{task}")
            if stack_pointer is None:
                running += int(task) != pid
                continue
            stack = _containing_map(maps, stack_pointer)
            stacks.add(stack)
            counts.update(
                _starting_runtime(
                    maps, _read_words(memory.fileno(), stack_pointer, min(stack.end, stack_pointer + _STACK_BYTES))
                )
            )
        if running:  # it spins without end, by its settings: its stack is one without a waiting thread
            counts.update(_spinning_runtimes(maps, stacks, memory.fileno()))
    return counts, running


def _stack_pointer(task: str) -> int | None:
    """Return the stack pointer of a thread that waits in the kernel, or None for a running one."""
    with open(f"{task}/syscall", encoding="ascii") as file:
        words = file.read().split()
    return int(words[-2], 16) if len(words) > 2 else None


def _read_maps(folder: str) -> list[_Map]:
    maps = []
    with open(f"{folder}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split(None, 5)
            start, end = (int(word, 16) for word in words[0].split("-"))
            maps.append(_Map(start, end, words[1], words[5].strip() if len(words) > 5 else ""))
    return maps


def _containing_map(maps: list[_Map], address: int) -> _Map:
    return maps[max(0, bisect_right(maps, (address, 1 << 64)) - 1)]


def _read_words(file: int, start: int, end: int) -> tuple[int, ...]:
    content = os.pread(file, end - start, start)
    return struct.unpack(f"<{len(content) // 8}Q", content[: len(content) // 8 * 8])


def _starting_runtime(maps: list[_Map], words: tuple[int, ...]) -> list[str]:
    """Return the runtime that started a thread: the outermost library on its stack, except the C library."""
    for address in reversed(words):
        containing_map = _containing_map(maps, address)
        is_code = (
            "x" in containing_map.rights
            and containing_map.start <= address < containing_map.end
            and containing_map.path.startswith("/")
        )
        if is_code and not _BELOW.search(containing_map.path):
            name = symbol_resolution.short_name(containing_map.path)
            return [name] if name in _RUNTIMES else []
    return []


def _spinning_runtimes(maps: list[_Map], waiting: set[_Map], file: int) -> list[str]:
    runtimes = []
    for guard, stack in zip(maps, maps[1:]):
        is_stack = guard.rights.startswith("---") and guard.end == stack.start and stack.rights.startswith("rw")
        if is_stack and not stack.path and stack not in waiting:
            runtimes += _starting_runtime(
                maps, _read_words(file, max(stack.start, stack.end - _STACK_BYTES), stack.end)
            )
    return runtimes

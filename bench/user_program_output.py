"""The output of the user's own program: split into its writes, shortened for the log, and searched line by line."""

from __future__ import annotations

import fcntl
import os
import re
import select
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from bench.evidence.reading import attempt

_CHUNK_BYTES = 1 << 16
#: The loader's message for a library that it does not preload (glibc's elf/rtld.c).
_LOST = re.compile(rb"ERROR: ld\.so: object '([^'\n]+)' from LD_PRELOAD cannot be preloaded")
_READ_S = 2.0
#: The largest pipe that any user may set (pipe(7)); each write takes at least one page of it.
_PIPE_BYTES = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: With fewer pages (64 KiB each, for example) the pipe is plain, otherwise the program would wait for its reader.
_FEWEST_PAGES = 64
#: If the reader waited this long (1 ms) for a CPU, lines read together may have been written separately.
_LATE_NS = 1_000_000
_F_SETPIPE_SZ = 1031  # linux/fcntl.h; Python 3.10 defines it


class Burst(NamedTuple):
    """Writes that were all available at ``at_ns``; ``full``: the program may have waited for room to write more."""

    writes: list[bytes]
    at_ns: int
    full: bool


class Pipe:
    """The pipe that a program writes to. ``apart``: the kernel keeps writes separate, however late they are read.

    Lines of one write were then written together. Uses O_DIRECT of pipe(2); without it the pipe is plain.
    """

    def __init__(self, apart: bool) -> None:
        self._room = 0
        ends = attempt(lambda: os.pipe2(os.O_CLOEXEC | os.O_DIRECT)) if apart else None
        self._file, self.written = ends or os.pipe()
        if ends:
            size = attempt(lambda: fcntl.fcntl(self.written, _F_SETPIPE_SZ, _PIPE_BYTES)) or 0
            self._room = size // _PAGE_BYTES
        if ends and self._room < _FEWEST_PAGES:
            self._room = 0
            fcntl.fcntl(self.written, fcntl.F_SETFL, 0)

    def read_as_it_arrives(self) -> Iterator[Burst]:
        """Yield the available output whenever some arrives, until all writers have exited; then close the pipe."""
        waits = attempt(lambda: os.open("/proc/thread-self/schedstat", os.O_RDONLY))
        while True:
            waited_ns = _cpu_wait_ns(waits)
            select.select([self._file], [], [])
            late_ns = _cpu_wait_ns(waits) - waited_ns
            at_ns = time.perf_counter_ns() - late_ns
            available = int.from_bytes(fcntl.ioctl(self._file, termios.FIONREAD, bytes(4)), "little")
            pieces = list(self._pieces(available))
            if not pieces:
                break
            is_full = len(pieces) >= self._room if self._room else available >= _CHUNK_BYTES // 2
            yield Burst(_writes(pieces) if self._room else _lines(b"".join(pieces), late_ns), at_ns, is_full)
        for file in (self._file, *([] if waits is None else [waits])):
            os.close(file)

    def _pieces(self, available: int) -> Iterator[bytes]:
        """Read this many bytes, and leave output that arrives meanwhile for the next burst."""
        while available > 0:
            piece = os.read(self._file, _CHUNK_BYTES if self._room else min(available, _CHUNK_BYTES))
            if not piece:
                return
            available -= len(piece)
            yield piece


def _cpu_wait_ns(file: int | None) -> int:
    """Return the nanoseconds that this thread was runnable but waiting for a CPU; 0 if they are not counted.

    https://docs.kernel.org/scheduler/sched-stats.html
    """
    return attempt(lambda: int(os.pread(file or 0, 100, 0).split()[1])) or 0


def _writes(pieces: list[bytes]) -> list[bytes]:
    """Join pieces to writes: the kernel splits longer writes into pieces of PIPE_BUF bytes and a rest."""
    writes = [b""]
    for piece in pieces:
        writes[-1] += piece
        if len(piece) != select.PIPE_BUF:
            writes.append(b"")
    return [write for write in writes if write]


def _lines(received: bytes, late_ns: int) -> list[bytes]:
    """Return a plain pipe's content as one write, or as one per line if the reader was late."""
    return received.splitlines(keepends=True) if late_ns > _LATE_NS else [received]


class Output:
    """Reads a program's output to its end and keeps its first and last ``limit_bytes`` / 2 for the log.

    ``look`` gets the whole lines of each burst, as one text per write.
    """

    def __init__(
        self, pipe: Pipe, log: BinaryIO, limit_bytes: int, look: Callable[[list[str], int, bool], None] | None
    ) -> None:
        self._pipe, self._log, self._half, self._look = pipe, log, limit_bytes // 2, look
        self._first, self._last, self.total = 0, bytearray(), 0
        self.lost_preloads: set[str] = set()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        rest = b""
        for burst in self._pipe.read_as_it_arrives():
            texts = []
            for write in burst.writes:
                lines, ended, rest = (rest + write).rpartition(b"\n")
                texts += [lines.decode(errors="replace")] if ended else []
                if len(rest) > _CHUNK_BYTES:  # a progress bar that ends no line, or data
                    redraws, _, rest = rest.rpartition(b"\r")
                    texts += [redraws.decode(errors="replace")] if redraws else []
                    rest = rest[-_CHUNK_BYTES:]
            if self._look:
                self._look(texts, burst.at_ns, burst.full)
            for write in burst.writes:
                self.total += len(write)
                self.lost_preloads.update(name.decode(errors="replace") for name in _LOST.findall(write))
                self._keep(write)
        if self._look and rest:
            self._look([rest.decode(errors="replace")], time.perf_counter_ns(), False)

    def _keep(self, chunk: bytes) -> None:
        room = self._half - self._first
        if room > 0:
            self._first += len(chunk[:room])
            self._log.write(chunk[:room])
            self._log.flush()
            chunk = chunk[room:]
        self._last += chunk
        if len(self._last) > 2 * self._half:
            del self._last[: len(self._last) - self._half]

    def write_rest_of_log(self) -> None:
        """Wait briefly for the end of the output, then write the rest of the log."""
        self.thread.join(_READ_S)
        tail = bytes(self._last[-self._half :])
        left_out = self.total - self._first - len(tail)
        if left_out > 0:
            self._log.write(f"\n[... {left_out} bytes left out ...]\n".encode())
        self._log.write(tail)
        self._log.flush()

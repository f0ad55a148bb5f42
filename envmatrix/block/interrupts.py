"""Handle Ctrl-C, SIGTERM and SIGHUP during a run without losing any.

Python raises KeyboardInterrupt wherever the main thread is, and a finaliser or callback discards it. So each signal is
recorded first, and ``check`` raises one that was discarded or deferred. A run often gets the same request twice: a
terminal signals all its processes, and the parent (nox, a batch system) forwards its own signal. The repeated signal is
ignored, so that it cannot interrupt the cleanup started by the first.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds after a signal in which another one is ignored as a repetition.
_REPEAT_WINDOW_S = 3.0


class Readable(Protocol):
    """An object with a file descriptor to wait for."""

    def fileno(self) -> int:
        """Return its file descriptor."""


@dataclass
class _State:
    """Signal state of this process; ``wake`` receives a byte for every signal."""

    came: bool = False
    held: int = 0
    heard: float | None = None  # time (monotonic) of the last one not ignored
    wake: socket.socket | None = None


_state = _State()


def _in_main_thread() -> bool:
    """Return whether this is the main thread, which receives signals."""
    return threading.current_thread() is threading.main_thread()


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    now = time.monotonic()
    if _state.heard is not None and now - _state.heard < _REPEAT_WINDOW_S:
        return
    _state.came, _state.heard = True, now
    if not _state.held:
        raise KeyboardInterrupt


def mark_handled() -> None:
    """Mark the last signal as handled; only a new one, some seconds later, is raised."""
    _state.came = False


def came() -> bool:
    """Return whether an unhandled signal was received."""
    return _state.came


def check() -> None:
    """Raise KeyboardInterrupt if a signal was received and is not deferred."""
    if _state.came and not _state.held and _in_main_thread():
        raise KeyboardInterrupt


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Record signals and raise KeyboardInterrupt for them, including SIGTERM (from a batch system) and SIGHUP."""
    if not _in_main_thread() or _state.wake:  # other threads, such as a notebook's worker, receive no signals
        yield
        check()
        return
    # Ignored signals stay ignored, for `nohup`.
    numbers = [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    _state.wake, wake_end = socket.socketpair()
    _state.wake.setblocking(False)
    wake_end.setblocking(False)
    wakened = signal.set_wakeup_fd(wake_end.fileno(), warn_on_full_buffer=False)
    old_handlers = {number: signal.signal(number, _on_signal) for number in numbers}
    try:
        yield
        check()
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakened)
        _state.wake.close()
        wake_end.close()
        _state.wake, _state.came, _state.heard = None, False, None


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Defer signals: one received in the meantime is raised at the end, so that the body is not interrupted."""
    if not _in_main_thread():
        yield
        return
    _state.held += 1
    try:
        yield
    finally:
        _state.held -= 1
    check()


def wait_readable(files: Iterable[Readable], seconds: float | None) -> list[Readable]:
    """Wait until any of ``files`` is readable; return those that are. A signal ends the wait."""
    woken = _state.wake if _in_main_thread() else None
    watched = list(files)
    while True:
        readable = select.select([*watched, *([woken] if woken else [])], [], [], seconds)[0]
        if woken in readable and woken:
            woken.recv(64)
            check()
        ready_files = [file for file in watched if file in readable]
        if ready_files or not readable:
            return ready_files

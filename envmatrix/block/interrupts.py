"""Ctrl-C, SIGTERM and SIGHUP while trials run: none of them gets lost.

Python raises KeyboardInterrupt wherever its main thread is, and what is raised inside a finaliser or a callback is
swallowed there. So a signal is remembered first: where it was swallowed, or held back, the next ``check`` raises it.

Who ends a run often sends two: a terminal sends one to all its processes, and what started envmatrix (nox, a batch
system) passes its own on. The second says nothing new, and may not cut short what the first began.
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
#: How long (seconds) after a signal another one says nothing new.
_REPEAT_WINDOW_S = 3.0


class Readable(Protocol):
    """What can be waited for: it has a file descriptor."""

    def fileno(self) -> int:
        """Return its descriptor."""


@dataclass
class _State:
    """Signals belong to a process, so there is one of this: ``wake`` gets a byte with every signal."""

    came: bool = False
    held: int = 0
    heard: float | None = None  # when (monotonic) the last one was that says something new
    wake: socket.socket | None = None


_state = _State()


def _in_main_thread() -> bool:
    """Whether this thread is the one that signals come to."""
    return threading.current_thread() is threading.main_thread()


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    now = time.monotonic()
    if _state.heard is not None and now - _state.heard < _REPEAT_WINDOW_S:
        return
    _state.came, _state.heard = True, now
    if not _state.held:
        raise KeyboardInterrupt


def mark_handled() -> None:
    """Say that what a signal asked for is done: only another one, some seconds later, is raised again."""
    _state.came = False


def came() -> bool:
    """Whether a signal has come that will end what goes on."""
    return _state.came


def check() -> None:
    """Raise KeyboardInterrupt when a signal has come and none are held back."""
    if _state.came and not _state.held and _in_main_thread():
        raise KeyboardInterrupt


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Remember signals and raise them as KeyboardInterrupt, SIGTERM (a batch system) and SIGHUP as well."""
    if not _in_main_thread() or _state.wake:  # as in a notebook's worker: no signal comes here
        yield
        check()
        return
    # What is ignored stays ignored: that is what `nohup` means.
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
    """Hold signals back: one that comes meanwhile is raised at the end, so that what is done here is done whole."""
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
    """Wait until one of ``files`` can be read, and return those that can; a signal ends the wait at once."""
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

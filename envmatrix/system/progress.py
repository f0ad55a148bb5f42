"""Where progress goes: whoever starts something long passes in who is told, now and then of what takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Takes one line of progress ("building torch-2.13.0 ...").
ProgressCallback = Callable[[str], None]


def silent(_text: str) -> None:
    """Tell nobody."""


def report_once(progress: ProgressCallback) -> ProgressCallback:
    """Return what tells each text the first time alone: of steps that all have the same to say."""
    reported: set[str] = set()

    def tell(text: str) -> None:
        if text not in reported:
            reported.add(text)
            progress(text)

    return tell


def duration_text(seconds: float) -> str:
    """Write a duration as people read it: 4 min 05 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


#: How often (seconds) something is said of what takes long.
HEARTBEAT_INTERVAL_S = 30.0


class Heartbeat:
    """Says, now and then until it is stopped, how long something has been going on."""

    def __init__(self, tell: ProgressCallback, what: str, every_s: float = HEARTBEAT_INTERVAL_S) -> None:
        self._stopped = threading.Event()
        self._tell, self._what, self._every_s, self._began = tell, what, every_s, time.monotonic()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._tell(f"{self._what}, for {duration_text(time.monotonic() - self._began)}")

    def __enter__(self) -> Heartbeat:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Say nothing more."""
        self._stopped.set()

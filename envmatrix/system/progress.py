"""Progress reporting: callbacks that long operations call with one line of text."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Called with one line of progress ("building torch-2.13.0 ...").
ProgressCallback = Callable[[str], None]


def silent(_text: str) -> None:
    """Ignore progress."""


def report_once(progress: ProgressCallback) -> ProgressCallback:
    """Return a callback that reports each text only once, for steps with equal messages."""
    reported: set[str] = set()

    def tell(text: str) -> None:
        if text not in reported:
            reported.add(text)
            progress(text)

    return tell


def duration_text(seconds: float) -> str:
    """Return a duration in readable form: 4 min 05 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


#: Seconds between progress reports of a long operation.
HEARTBEAT_INTERVAL_S = 30.0


class Heartbeat:
    """Reports at intervals how long an operation has been running, until it is stopped."""

    def __init__(
        self,
        tell: ProgressCallback,
        what: str,
        every_s: float = HEARTBEAT_INTERVAL_S,
        outlook: Callable[[float], str] = lambda _: "",
    ) -> None:
        """Start to report; ``outlook`` returns what to add after so many seconds."""
        self._stopped = threading.Event()
        self._tell, self._what, self._every_s, self._began = tell, what, every_s, time.monotonic()
        self._outlook = outlook
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            seconds = time.monotonic() - self._began
            self._tell(f"{self._what}, for {duration_text(seconds)}{self._outlook(seconds)}")

    def __enter__(self) -> Heartbeat:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop reporting."""
        self._stopped.set()

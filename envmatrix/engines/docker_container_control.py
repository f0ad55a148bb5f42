"""Control a running container: pause, resume and end it, and determine how it ended."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

import requests.exceptions

from envmatrix.block import interrupts
from envmatrix.engines.base import Job
from envmatrix.engines.docker_api import APIError, DockerClient, connect, docker_errors
from envmatrix.errors import EngineError, NoTrialError
from envmatrix.system.process import Exit

_KILLED = 137


def container_exit(code: int, wall: float, state: Mapping[str, object], job: Job, *, timed_out: bool) -> Exit:
    """Return how a container ended.

    Docker sets OOMKilled if memory ran out for any of its processes. Podman never does, so a kill under a memory limit
    counts as out of memory.
    """
    killed = code == _KILLED and bool(job.limits.memory_bytes)
    out_of_memory = code != 0 and not timed_out and (killed or bool(state.get("OOMKilled")))
    return Exit(-(code - 128) if code > 128 else code, wall, timed_out, out_of_memory)


def count_pauses(client: DockerClient, container: str) -> int:
    """Return how often a container was paused, which cannot be seen inside with cgroups of version 1.

    Docker keeps its last 256 events, of all containers, so an old pause may be missing. Podman (4.3) can cut off an
    answer that has an end time.
    """
    # An end time in the past ends the answer; without a start time it would contain no past events.
    until = f"{time.time():.9f}"
    pause_events = client.api.events(since=1, until=until, filters={"container": container}, decode=True)  # type: ignore[call-overload]
    with contextlib.closing(pause_events) as events:
        return sum(event.get("Action") == "pause" for event in events)


@dataclass
class RunningContainer:
    """A running container; a thread waits for its end, because the API offers no other way."""

    client: DockerClient
    container: str
    job: Job
    _ends: socket.socket
    _codes: list[int]
    _started: float = field(default_factory=time.monotonic)

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when it ends."""
        return self._ends.fileno()

    def hold(self) -> None:
        """Freeze all its processes with the cgroup freezer, which works even if signals do not."""
        self._unless_ended("pausing", lambda: self.client.api.pause(self.container))

    def release(self) -> None:
        """Resume all its processes."""
        self._unless_ended("unpausing", lambda: self.client.api.unpause(self.container))

    def _unless_ended(self, doing: str, call: Callable[[], object]) -> None:
        try:
            with docker_errors(f"{doing} {self.job.label}"):
                call()
        except EngineError as error:
            if not interrupts.wait_readable([self], 0) and self._is_running():
                raise NoTrialError(error.message, remedy=error.remedy) from error

    def _is_running(self) -> bool:
        with docker_errors(f"inspecting {self.job.label}"):
            return bool(self.client.api.inspect_container(self.container)["State"]["Running"])

    def end(self) -> None:
        """Kill it, even if it is paused."""
        for call in (self.client.api.unpause, self.client.api.kill):
            with contextlib.suppress(APIError):
                call(self.container)

    def exit(self) -> Exit:
        """Wait until it ends, and return its exit."""
        interrupts.wait_readable([self], None)
        if not self._codes:
            raise NoTrialError(f"{self.job.label}: the engine went away while it ran")
        wall = time.monotonic() - self._started
        with docker_errors(f"inspecting {self.job.label}"):
            state = self.client.api.inspect_container(self.container)["State"]
        return container_exit(self._codes[0], wall, state, self.job, timed_out=False)


@contextlib.contextmanager
def start_and_watch_container(client: DockerClient, container: str, job: Job, host: str) -> Iterator[RunningContainer]:
    """Start a container, and wait for its end in a background thread with its own connection to ``host``."""
    ends, end_signal = socket.socketpair()
    codes: list[int] = []
    output = start(client, container)
    threading.Thread(target=_await_end, args=(host, container, output, codes, end_signal), daemon=True).start()
    with ends:
        yield RunningContainer(client, container, job, ends, codes)


def start(client: DockerClient, container: str) -> IO[bytes] | None:
    """Start a container; return its error output for ``wait_for_exit``, or None if the engine needs no such help.

    While Podman answers a wait, its service uses more than a CPU (containers/podman: WaitContainerDocker looks every
    nanosecond). The output ends with the container, even if the program closed it. It is attached before the start,
    because Podman prepares an ended container anew to attach to it.
    """
    output = None
    with contextlib.ExitStack() as stack:
        if "Podman" in str(client.version().get("Components")):
            output = stack.enter_context(client.api.attach_socket(container, {"stderr": 1, "stream": 1}))
        client.api.start(container)
        stack.pop_all()
    return output


def wait_for_exit(
    client: DockerClient, container: str, output: IO[bytes] | None = None, limit_s: int | None = None
) -> int:
    """Return the exit code of a started container when it has ended. Raises requests' ReadTimeout after ``limit_s``."""
    if output:
        _read_to_end(output, limit_s)
    return int(client.api.wait(container, timeout=limit_s)["StatusCode"])


def _read_to_end(output: IO[bytes], limit_s: int | None) -> None:
    deadline = None if limit_s is None else time.monotonic() + limit_s
    with output:
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([output], [], [], left_s)[0]:
                raise requests.exceptions.ReadTimeout
            if not output.read(2**16):
                return


def _await_end(
    host: str, container: str, output: IO[bytes] | None, codes: list[int], end_signal: socket.socket
) -> None:
    with end_signal, contextlib.suppress(Exception):  # if the engine is gone there is no exit code
        client = connect(host)
        try:
            codes.append(wait_for_exit(client, container, output))
        finally:
            client.close()

"""What can be seen of a process from outside: for programs that are not Python, or were killed.

Which libraries are mapped is seen, which one serves is not: those items stay None.
"""

from __future__ import annotations

import os
import re
import threading
from functools import partial
from typing import Any

from bench.evidence import machine, memory, sandbox
from bench.evidence.reading import attempt, fields, text


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    found = []
    for thread in attempt(lambda: os.listdir(f"/proc/{pid}/task")) or []:
        found += [int(child) for child in (text(f"/proc/{pid}/task/{thread}/children") or "").split()]
    return found


class Watch:
    """Looks at a process and its descendants a few times while it runs, more rarely as it goes on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._libraries: set[str] = set()
        self._affinity: str | None = None
        self._variables: dict[str, str] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        pause = 0.1
        while not self._over.wait(pause):
            for pid in self._family():
                attempt(partial(self._look, pid))
            pause = min(10.0, pause * 2)

    def _family(self) -> list[int]:
        pids = [self.pid]
        for pid in pids:
            pids += children(pid)
        return pids

    def _look(self, pid: int) -> None:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            self._libraries |= set(re.findall(r"(/\S+\.so(?:\.\S+)?)$", file.read(), re.MULTILINE))
        self._affinity = fields(f"/proc/{pid}/status").get("Cpus_allowed_list") or self._affinity
        raw = text(f"/proc/{pid}/environ")
        if raw:
            self._variables = dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)

    def evidence(self) -> dict[str, Any]:
        """Return the evidence in the form of the inside one."""
        return {
            "openmp": None,
            "malloc": None,
            "blas": None,
            "torch": None,
            "cpu": dict(machine.cpu(), affinity_before=None, affinity_after=None, affinity_list=self._affinity),
            "memory": attempt(memory.collect),
            "sandbox": attempt(sandbox.collect),
            "system": machine.system(),
            "libraries": sorted(self._libraries),
            "variables": self._variables,
        }

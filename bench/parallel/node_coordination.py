"""Ranks on several nodes, with one supervisor per node: they meet at the first node and exchange results in files.

Standard library only: a supervisor has no torch. The files are next to the record, on a file system all nodes share.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.errors import BenchError, RunError
from bench.options import Options
from bench.parallel import device_and_learning_rate

_POLL_S = 0.1
#: Seconds that a node whose ranks only lost a peer waits for the report of the node that failed first.
_VERDICT_S = 5.0
_SIOCGIFADDR = 0x8915
#: How directly a rank caused a failure: killed, ended with an error, only lost its peer.
KILLED, BROKE, LOST_A_PEER = 0, 1, 2


@dataclass(frozen=True)
class Node:
    """This node's part in a job: number ``index`` of ``count``, called ``name``; nodes meet at ``host``:``port``."""

    index: int
    count: int
    name: str
    host: str
    port: int
    folder: str

    def __post_init__(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        for number in range(self.count):
            # Existing files are looked up again when opened, but NFS may not show a file that is created later.
            with open(self._file(number), "w" if number == self.index else "a", encoding="utf-8"):
                pass

    def ranks(self, world: int) -> range:
        """Return the ranks that this node starts: equally many per node, in the order of the nodes."""
        ranks_per_node = world // self.count
        return range(self.index * ranks_per_node, (self.index + 1) * ranks_per_node)

    def facts_for_ranks(self) -> dict[str, Any]:
        """Return the facts about this node that its ranks need, for the job file."""
        return {"host": self.host, "port": self.port, "first": self.index == 0, "node": self.name}

    def _file(self, number: int) -> str:
        return os.path.join(self.folder, f"node-{number}.json")

    def _tell(self, answer: dict[str, Any]) -> None:
        with open(self._file(self.index), "w", encoding="utf-8") as file:
            json.dump(answer, file)

    def _heard(self, number: int) -> Any:
        """Return a node's answer, or None if it is missing or incomplete."""
        try:
            with open(self._file(number), encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def settle(self, guilt: int, words: str) -> str:
        """Report this node's failure; return the message of the node that failed first, if it reports in time."""
        self._tell({"failure": [guilt, words]})
        until = time.monotonic() + (0 if guilt == KILLED else _VERDICT_S)
        while True:
            reports = [self._heard(number) for number in range(self.count)]
            failures = [answer["failure"] for answer in reports if answer and "failure" in answer]
            if time.monotonic() >= until or None not in reports or any(failure[0] == KILLED for failure in failures):
                first_words: str = min([[guilt, words], *failures])[1]
                return first_words
            time.sleep(_POLL_S)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Report an error of this supervisor to the other nodes."""
        try:
            yield
        except (BenchError, RunError) as error:
            if self._heard(self.index) is None:
                self._tell({"failure": [BROKE, f"node {self.name}: {error}"]})
            raise

    def gather(self, records: Sequence[dict[str, Any]], limit_s: float) -> list[dict[str, Any]] | None:
        """Write this node's records for the first node, which returns the records of all; others return None."""
        self._tell({"records": list(records)})
        if self.index:
            return None
        until, all_records = time.monotonic() + limit_s, list(records)
        for number in range(1, self.count):
            while not (answer := self._heard(number)):
                if time.monotonic() >= until:
                    raise RunError(
                        f"node {number} of {self.count} has left no record within {limit_s} s in {self.folder}"
                    )
                time.sleep(_POLL_S)
            if "failure" in answer:
                raise RunError(answer["failure"][1])
            all_records += answer["records"]
        return all_records


def from_arguments(arguments: argparse.Namespace, options: Options) -> Node | None:
    """Return this process's Node, or None if the job has one node. Raises BenchError for a missing argument."""
    node_options = (arguments.node_rank, arguments.meet)
    if options["nodes"] == 1:
        if node_options != (None, None):
            raise BenchError("--node-rank and --meet belong to --nodes above 1")
        return None
    if None in node_options or not arguments.record:
        raise BenchError(
            "--nodes above 1 wants one start on each node, each with --node-rank K, --meet HOST:PORT (an address of "
            "node 0) and --record FILE in a folder that all nodes share"
        )
    count, index = options["nodes"], arguments.node_rank
    host, _, port = arguments.meet.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BenchError(f"--meet wants HOST:PORT, not {arguments.meet!r}")
    if not 0 <= index < count:
        raise BenchError(f"--node-rank must be from 0 to {count - 1}, not {index}")
    device_and_learning_rate.check_batch_divides(options)
    name = arguments.node_name or os.uname().nodename
    return Node(index, count, name, host, int(port), f"{arguments.record}.nodes")


def interface(store: Any, meet: dict[str, Any]) -> str | None:
    """Return the network interface through which this node reaches the others, or None if it is unknown.

    The first node cannot know it, because its own name often resolves to 127.0.1.1. The others put the address at which
    they reached it into the store.
    """
    if meet["first"]:
        return _interface_of(store.get("envmatrix/first-node").decode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:  # connecting it sends nothing
        probe_socket.connect((meet["host"], meet["port"]))
        store.set("envmatrix/first-node", probe_socket.getpeername()[0])
        return _interface_of(probe_socket.getsockname()[0])


def _interface_of(address: str) -> str | None:
    """Return the name of the interface that has this IPv4 address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe_socket.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None

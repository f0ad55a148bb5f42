"""The servers a process is connected to: work done by a server it did not start uses that server's environment.

proc(5), "/proc/PID/net/tcp"; sock_diag(7) for the other end of a local socket, which no file shows.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from functools import partial

from bench.evidence import proc_files
from bench.evidence.reading import attempt

_ESTABLISHED, _LISTENS = "01", "0A"
#: linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h
_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_SHOW_NAME_AND_PEER, _NAME, _PEER = 5, 0, 2
_WAIT_S = 0.2
#: System services that the C library contacts by itself, for example for user and host names or logging.
_OF_SYSTEM = ("/var/lib/sss/", "/run/nscd/", "/var/run/nscd/", "/run/systemd/", "/run/dbus/", "/var/run/dbus/")


class Sockets:
    """The sockets of one command's processes, and the other ends of its connections.

    ``ports``: the port on this side of each connection. A peer that connected to a port of these processes is their
    client.
    """

    def __init__(self) -> None:
        self.mine: set[str] = set()
        self.own: set[str] = set()
        self.others: dict[str, str] = {}
        self.ports: dict[str, str] = {}

    def look(self, pid: int) -> None:
        """Add the sockets of a process."""
        opened = proc_files.sockets(pid)
        if not opened - self.own:
            return
        self.own |= opened
        for words in proc_files.tcp_sockets(pid):
            if words[9] in opened and words[3] in (_ESTABLISHED, _LISTENS):
                self._add(words[1], words[2], words[3])
        for inode, name in (attempt(partial(_local_peers, opened)) or {}).items():
            if not name.startswith(_OF_SYSTEM):
                self.others[inode] = name

    def _add(self, local: str, remote: str, state: str) -> None:
        self.mine.add(local)
        if state == _LISTENS:
            self.mine.add(_port(local))
        else:
            self.others[remote], self.ports[remote] = _address(remote), _port(local)

    def outside(self) -> list[str]:
        """Return the sorted addresses or socket files of servers outside the command's processes."""
        inside = self.mine | self.own
        ends = (end for end in self.others if inside.isdisjoint((end, _port(end), self.ports.get(end, "-"))))
        return sorted({self.others[end] for end in ends})


def _port(address: str) -> str:
    return f":{address.rpartition(':')[2]}" if ":" in address else ""


def _address(address: str) -> str:
    """Return an address of this machine in readable form, but only the port of another machine's.

    The kernel shows 32-bit words in the machine's byte order, in hexadecimal.
    """
    host, _, port = address.rpartition(":")
    raw = b"".join(int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8))
    if raw.startswith(bytes(10) + b"\xff\xff"):
        raw = raw[12:]
    if raw[:1] == b"\x7f" or raw == bytes(15) + b"\x01":
        return f"127.0.0.1:{int(port, 16)}" if len(raw) == 4 else f"[::1]:{int(port, 16)}"
    return f"another machine, port {int(port, 16)}"


def _local_peers(opened: set[str]) -> dict[str, str]:
    """Return {inode: name} for peers of these local sockets that have a name, which are servers."""
    names, peers = {}, {}
    for inode, name, peer in _local_sockets():
        names[inode] = name
        peers[inode] = peer
    peer_names = {peers[inode] for inode in opened if peers.get(inode)}
    return {peer: names[peer] for peer in peer_names if names.get(peer)}


def _local_sockets() -> Iterator[tuple[str, str, str]]:
    import socket

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_WAIT_S)
        request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME_AND_PEER, 0, 0)
        kernel.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
        while True:
            answer, offset = kernel.recv(1 << 16), 0
            while offset < len(answer):
                length, message_type = struct.unpack_from("=IH", answer, offset)
                if message_type != _BY_FAMILY:
                    return
                yield _parse_message(answer[offset + 16 : offset + length])
                offset += (length + 3) & ~3


def _parse_message(message: bytes) -> tuple[str, str, str]:
    (inode,) = struct.unpack_from("=I", message, 4)
    name, peer, offset = "", "", 16
    while offset + 4 <= len(message):
        length, attribute_type = struct.unpack_from("=HH", message, offset)
        payload = message[offset + 4 : offset + length]
        if attribute_type == _NAME:
            name = os.fsdecode(payload.replace(b"\0", b"@", 1) if payload.startswith(b"\0") else payload.rstrip(b"\0"))
        elif attribute_type == _PEER:
            peer = str(struct.unpack("=I", payload)[0])
        offset += max(4, (length + 3) & ~3)
    return str(inode), name, peer

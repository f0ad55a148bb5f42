"""Which node a block runs on, and which nodes are left out."""

from __future__ import annotations

from envmatrix.engines.base import Say
from envmatrix.errors import EngineError
from envmatrix.launchers.slurm.client import SlurmClient
from envmatrix.matrix import Slurm


class Placing:
    """Remembers the nodes that failed in this start; a later ``resume`` gives them another chance."""

    def __init__(self, client: SlurmClient, options: Slurm, say: Say) -> None:
        self._client = client
        self._options = options
        self._say = say
        self.left_out: dict[str, str] = {}

    def leave_out(self, node: str, reason: str) -> None:
        """Name a node that failed; no further block goes there."""
        if node and node not in self.left_out:
            self.left_out[node] = reason
            self._say(f"node {node} is left out: {reason}")

    def unusable(self) -> dict[str, str]:
        """Return the nodes that cannot take jobs, with their state and its reason."""
        return {
            node.name: f"{node.state} ({node.reason})" if node.reason else node.state
            for node in self._client.nodes(self._options)
            if not node.usable
        }

    def node_for(self, block: int, home: str) -> str | None:
        """Return the node a block must run on ('': any), or None when the one that began it cannot be had.

        Raises EngineError when no node is left.
        """
        nodes = self._client.nodes(self._options)
        good = [node.name for node in nodes if node.usable and node.name not in self.left_out]
        if not good:
            said = "; ".join(f"{node.name}: {self.left_out.get(node.name) or node.state}" for node in nodes)
            raise EngineError(
                f"no node is left to run on ({said})",
                remedy="repair them or choose others, then `envmatrix resume`; nothing is lost",
            )
        if home:
            return home if home in good else None
        listed = [name for name in self._options.nodelist if name in good]
        return listed[block % len(listed)] if listed else ""

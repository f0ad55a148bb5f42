"""Choose the node that a block runs on, and exclude nodes that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envmatrix.errors import EngineError
from envmatrix.launchers.batch_system import SilentError
from envmatrix.launchers.slurm.client import SlurmClient
from envmatrix.matrix import Slurm


class Placing:
    """Chooses among the usable nodes; a later ``resume`` tries those again that are ``left_out`` since this start."""

    def __init__(self, client: SlurmClient, options: Slurm, left_out: Mapping[str, str], span: int) -> None:
        self._client, self._options, self._left_out, self._span = client, options, left_out, span
        self._good: list[str] = []

    def unusable(self) -> dict[str, str]:
        """Return the nodes that cannot take jobs, with their state and its reason."""
        return {
            node.name: f"{node.state} ({node.reason})" if node.reason else node.state
            for node in self._client.nodes(self._options)
            if not node.usable and not node.undetermined
        }

    def lost_since(self, unusable: Mapping[str, str]) -> list[str]:
        """Return the nodes that were usable at the last submission and are now unusable."""
        return sorted(set(self._good) & set(unusable))

    def node_for(self, block: int, home: str) -> str | None:
        """Return the node a block must run on ('': any); None if the one that began it is not available.

        A block over several nodes gets their names with commas. Raises EngineError if too few nodes are left,
        SilentError if Slurm does not know their state yet.
        """
        nodes = self._client.nodes(self._options)
        good = [node.name for node in nodes if node.usable and node.name not in self._left_out]
        self._good = good
        missing = set(home.split(",")) - set(good) if home else set()
        if any(node.undetermined and (len(set(good)) < self._span or node.name in missing) for node in nodes):
            raise SilentError("Slurm does not know yet how its nodes are", remedy="when it does: `envmatrix resume`")
        if len(set(good)) < self._span:
            states = "; ".join(f"{node.name}: {self._left_out.get(node.name) or node.state}" for node in nodes)
            raise EngineError(
                f"{'no node is' if self._span == 1 else 'too few nodes are'} left to run on ({states})",
                remedy="repair them or choose others, then `envmatrix resume`; nothing is lost",
            )
        if home:
            return None if missing else home
        return nodes_of_block(block, [name for name in self._options.nodelist if name in good], self._span)


def nodes_of_block(block: int, listed: Sequence[str], span: int) -> str:
    """Return a block's nodes: blocks use ``listed`` in turn, ``span`` nodes at a time; '': Slurm chooses."""
    groups = [listed[first : first + span] for first in range(0, len(listed) - span + 1, span)]
    return ",".join(groups[block % len(groups)]) if groups else ""

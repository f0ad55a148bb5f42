"""Slurm's reasons for a waiting job, with a remedy (reasons.yaml) for those that never resolve by waiting.

The reasons are those of https://slurm.schedmd.com/job_reason_codes.html, and some whole sentences of slurmctld.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

_NEVER = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_NODES_DOWN = re.compile(r"ReqNodeNotAvail, ?UnavailableNodes:|Nodes required for job are DOWN")
_OF_USER = re.compile(r"(QOSMax|Max)(?!Submit)\w+PerUser(Limit)?|AssocMaxJobsLimit")


def remedy(reason: str) -> str | None:
    """Return what to change if a job with this reason never starts; None if it may start later."""
    first = reason if " " in reason.split(",")[0] else reason.split(",")[0]
    advice = (entry["remedy"] for entry in _NEVER for pattern in entry["reasons"] if re.fullmatch(pattern, first))
    return next(advice, None)


#: What to change if a block is larger than its user may have.
SIZE = remedy("QOSMinCpu")


def waits_for_own(reason: str) -> bool:
    """Return whether it waits for other jobs of the same user; if there are none, the job itself exceeds a limit."""
    return bool(_OF_USER.fullmatch(reason.split(",")[0]))


def needs_unavailable_nodes(reason: str) -> bool:
    """Return whether nodes that it needs are down; it never starts only if too few others are left."""
    return bool(_NODES_DOWN.match(reason))

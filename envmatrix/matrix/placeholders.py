"""Templates such as {physical_cores} in values of matrix.yaml, and arithmetic in them: {physical_cores - 1}."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TEMPLATE = re.compile(r"\{([a-z_]+)(?: *([-/]) *([1-9][0-9]{0,4}))?\}")

#: Known templates. Braces without a word, as in OMP_PLACES={0:2}, are not templates.
TEMPLATE_NAMES = (
    "logical_cpus", "physical_cores", "numa_nodes", "cpu_list", "physical_cpu_list", "last_cpu", "gpu_cpu_list",
    "first_node", "first_node_cpu_list",
)  # fmt: skip
#: Example values, for checks that must not depend on this machine.
SAMPLE_VALUES = {name: "0-1" if name.endswith("list") else "1" for name in TEMPLATE_NAMES}


def unknown_template(text: str) -> str | None:
    """Return the first template in ``text`` that does not exist, or None."""
    return next((match[0][1:-1] for match in _TEMPLATE.finditer(text) if not _is_known(match)), None)


def unfilled_template(text: str) -> str | None:
    """Return the first template name that is left in a text which was filled, or None."""
    return next((match[1] for match in _TEMPLATE.finditer(text) if match[1] in TEMPLATE_NAMES), None)


def is_open(text: str) -> bool:
    """Say whether a text holds a template."""
    return _TEMPLATE.search(text) is not None


def fill_templates(text: str, facts: Mapping[str, str]) -> str:
    """Replace each known template whose value is in ``facts``; anything else stays as written.

    What is left of a number after ``- N`` or ``/ N`` is at least 1, for it counts CPUs.
    """
    return _TEMPLATE.sub(lambda match: _filled(match, facts), text)


def _is_known(match: re.Match[str]) -> bool:
    return match[1] in TEMPLATE_NAMES and not (match[2] and match[1].endswith("list"))


def _filled(match: re.Match[str], facts: Mapping[str, str]) -> str:
    value = facts.get(match[1])
    if value is None or not match[2]:
        return match[0] if value is None else value
    number, by = int(value), int(match[3])
    return str(max(1, number - by if match[2] == "-" else number // by))

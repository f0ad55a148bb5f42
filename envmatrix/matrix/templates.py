"""Templates such as {physical_cores} in values of matrix.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TEMPLATE = re.compile(r"\{([a-z_]+)\}")

#: What a template may name. OMP_PLACES={0:2} and the like are no templates: their braces hold no word.
TEMPLATE_NAMES = ("logical_cpus", "physical_cores", "numa_nodes", "cpu_list", "physical_cpu_list", "last_cpu")
#: Values of the kind that a machine gives, for checks that must not depend on this one.
SAMPLE_VALUES = {name: "0-1" if name.endswith("list") else "1" for name in TEMPLATE_NAMES}


def unknown_template(text: str) -> str | None:
    """Return the first template name in ``text`` that does not exist, or None."""
    return next((name for name in _TEMPLATE.findall(text) if name not in TEMPLATE_NAMES), None)


def unfilled_template(text: str) -> str | None:
    """Return the first template that is left in a text which was filled, or None."""
    return next((name for name in _TEMPLATE.findall(text) if name in TEMPLATE_NAMES), None)


def fill_templates(text: str, facts: Mapping[str, str]) -> str:
    """Replace each known template whose value is in ``facts``; anything else stays as written."""
    return _TEMPLATE.sub(lambda match: facts.get(match[1], match[0]), text)

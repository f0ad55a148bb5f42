"""Versions of installed packages: those that environments or options need, and those that checks name."""

from __future__ import annotations

import os
from functools import partial

from bench import recorded_variables
from bench.evidence.reading import attempt

#: Packages that environments add or workload options need; a list of all packages could be long.
_NAMES = ("horovod", "lightning", "onnx", "torch_xla", "torchao", "torchaudio", "torchvision")


def collect() -> dict[str, str]:
    """Return {name: version} of the packages that are installed."""
    from importlib import metadata  # it takes a tenth of the time of a short program's trial

    claimed = os.environ.get(recorded_variables.PACKAGES, "").split(",")
    versions = {name: attempt(partial(metadata.version, name)) for name in dict.fromkeys([*_NAMES, *claimed])}
    return {name: version for name, version in versions.items() if version}

"""The versions of packages in this Python: those that levels of envmatrix bring, and those that a claim names."""

from __future__ import annotations

import os
from functools import partial
from importlib import metadata

from bench import variables
from bench.evidence.reading import attempt

#: What some environment, or some option of a workload, brings or needs; the whole list of a Python may be long.
_NAMES = ("horovod", "lightning", "onnx", "torch_xla", "torchao", "torchaudio", "torchvision")


def collect() -> dict[str, str]:
    """Return name -> version of those that are there."""
    claimed = os.environ.get(variables.PACKAGES, "").split(",")
    versions = {name: attempt(partial(metadata.version, name)) for name in dict.fromkeys([*_NAMES, *claimed])}
    return {name: version for name, version in versions.items() if version}

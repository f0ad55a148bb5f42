"""Which of the packages that levels put beside torch this Python finds, and their versions."""

from __future__ import annotations

from functools import partial
from importlib import metadata

from bench.evidence.reading import attempt

#: What some environment, or some option of a workload, brings or needs; the whole list of a Python may be long.
_NAMES = ("horovod", "lightning", "onnx", "torch_xla", "torchao", "torchaudio", "torchvision")


def collect() -> dict[str, str]:
    """Return name -> version of those that are there."""
    found = {name: attempt(partial(metadata.version, name)) for name in _NAMES}
    return {name: version for name, version in found.items() if version}

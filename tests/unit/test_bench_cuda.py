"""Evidence on GPUs where there is none: what asks must not change what is told."""

import sys
from types import SimpleNamespace

from bench.evidence import cuda


def test_whether_pytorch_worked_on_a_gpu_is_read_before_anything_is_asked_of_one(monkeypatch):
    begun = []

    def properties(number):
        begun.append(number)
        return SimpleNamespace(name="a GPU", major=9, minor=0, total_memory=1, multi_processor_count=2)

    asked = SimpleNamespace(
        is_initialized=lambda: bool(begun), is_available=lambda: True, device_count=lambda: 1,
        get_device_properties=properties,
    )  # fmt: skip
    version, backends = SimpleNamespace(cuda="13.0"), SimpleNamespace(cudnn=SimpleNamespace(version=lambda: None))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=asked, version=version, backends=backends))
    first, then = cuda.collect(), cuda.collect()
    assert (first["used"], first["devices"][0]["name"]) == (False, "a GPU")
    assert then["used"] is True

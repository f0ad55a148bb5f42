"""Evidence about GPUs on a machine without any: collecting it must not change the result."""

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


def test_what_a_pytorch_without_the_newest_functions_cannot_say_is_not_there():
    """preferred_blas_library is of 2.4, the sizes of workspaces of 2.15; a build for CPUs is asked for none."""
    chosen = SimpleNamespace(name="Cublaslt")
    old = SimpleNamespace(
        version=SimpleNamespace(cuda="12.8"), cuda=SimpleNamespace(), _C=SimpleNamespace(),
        backends=SimpleNamespace(cuda=SimpleNamespace(preferred_blas_library=lambda: chosen)),
    )  # fmt: skip
    said = cuda._libraries_chosen(old, False)
    assert {name: value for name, value in said.items() if value is not None} == {"preferred_blas": "cublaslt"}
    assert cuda._libraries_chosen(SimpleNamespace(version=SimpleNamespace(cuda=None)), False) == {}


def test_the_default_workspace_is_asked_of_a_gpu_only_by_a_process_that_works_on_one():
    asked = []
    native = SimpleNamespace(_cuda_getCublasWorkspaceSize=lambda: asked.append(1) or 131072)
    torch = SimpleNamespace(
        version=SimpleNamespace(cuda="13.0"), cuda=SimpleNamespace(), _C=native,
        backends=SimpleNamespace(cuda=SimpleNamespace()),
    )  # fmt: skip
    assert [cuda._libraries_chosen(torch, used)["cublas_workspace_bytes"] for used in (False, True)] == [None, 131072]
    assert asked == [1]

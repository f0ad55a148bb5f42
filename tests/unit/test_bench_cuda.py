"""Evidence about GPUs on a machine without any: collecting it must not change the result."""

import ctypes
import json
import sys
from types import SimpleNamespace

from bench import process_resource_usage
from bench.evidence import cuda, nvml


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


def test_throttle_reasons_are_named_and_unknown_bits_are_kept():
    assert nvml.throttle_reasons(0) == []
    assert nvml.throttle_reasons(0x44) == ["software-power-cap", "hardware-thermal-slowdown"]
    assert nvml.throttle_reasons(0x1000) == ["0x1000"]


def test_only_cuda_libraries_that_are_mapped_are_listed():
    seen = cuda.libraries_by_family(["/x/libcudnn.so.9", "/usr/lib/libc.so.6", "/x/libcudart.so.13", "/y/libnccl.so.2"])
    assert sorted(seen) == ["libcudart", "libcudnn", "libnccl"]


class FakeNvml:
    """Fake NVML that answers as nvml.h describes, so that no GPU is needed."""

    def __init__(self):
        self.open, self.energy_mj = 0, 2**40

    def __getattr__(self, name):
        def answer(*arguments):
            numbers = {"nvmlDeviceGetCount_v2": 1, "nvmlDeviceGetTemperature": 61, "nvmlDeviceGetClockInfo": 1755}
            if name == "nvmlInit_v2":
                self.open += 1
            elif name == "nvmlShutdown":
                self.open -= 1
            elif name == "nvmlDeviceGetPowerUsage":
                return 3  # not supported
            elif name == "nvmlDeviceGetComputeRunningProcesses_v3":
                arguments[1]._obj.value = 2
                arguments[2][0].pid, arguments[2][1].pid = 77, 55
            elif name == "nvmlDeviceGetName":
                arguments[1].value = b"A GPU"
            elif name == "nvmlDeviceGetTotalEnergyConsumption":
                self.energy_mj += 2_500
                arguments[1]._obj.value = self.energy_mj
            elif name == "nvmlDeviceGetEccMode":
                arguments[1]._obj.value = 1
            elif name in numbers:
                arguments[-1]._obj.value = numbers[name]
            return 0

        return answer


def test_the_state_of_a_gpu_is_read_and_what_it_cannot_tell_is_unknown():
    fake = FakeNvml()
    with nvml.Nvml(fake) as library:
        device = library.device(library.count() - 1)
    assert fake.open == 0
    assert device["name"] == "A GPU"
    assert device["temperature_c"] == 61
    assert device["clocks"]["sm_mhz"] == 1755
    assert device["power_mw"] is None
    assert device["ecc"] == {"current": True, "pending": False}
    assert device["processes"] == [55, 77]
    assert device["throttle"] == []
    json.dumps(device)


def test_the_energy_of_gpus_is_counted_over_the_timed_part(monkeypatch):
    with nvml.Nvml(FakeNvml()) as library:
        monkeypatch.setattr(process_resource_usage, "_gpus", lambda: library)
        before = process_resource_usage.read()
        assert process_resource_usage.since(before)["gpu_energy_j"] == 2.5


def test_the_process_list_has_the_layout_of_nvml_h():
    assert ctypes.sizeof(nvml._Process) == 24
    assert nvml._Process.used.offset == 8

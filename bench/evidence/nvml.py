"""A ctypes interface to NVIDIA's management library (used by nvidia-smi too), so that no package is needed.

Names, structures and numbers are those of nvml.h: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
from typing import Any

from bench.evidence.reading import attempt

_TEXT = 96
_MOST_PROCESSES = 256

#: Bits of nvmlDeviceGetCurrentClocksThrottleReasons.
_THROTTLE = {
    0x1: "gpu-idle",
    0x2: "applications-clocks-setting",
    0x4: "software-power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "software-thermal-slowdown",
    0x40: "hardware-thermal-slowdown",
    0x80: "hardware-power-brake",
    0x100: "display-clock-setting",
}
_CLOCKS = {"graphics_mhz": 0, "sm_mhz": 1, "memory_mhz": 2}


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):  # nvmlProcessInfo_t of the _v3 functions
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def throttle_reasons(bits: int) -> list[str]:
    """Return the names of the reasons in a bit set, lowest bit first; unknown bits come last, in hexadecimal."""
    names = [name for bit, name in _THROTTLE.items() if bits & bit]
    unknown_bits = bits & ~sum(_THROTTLE)
    return names + ([hex(unknown_bits)] if unknown_bits else [])


class Nvml:
    """The library, initialised for a ``with`` block. Raises OSError if there is no driver."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or ctypes.CDLL("libnvidia-ml.so.1")

    def __enter__(self) -> Nvml:
        self._call("nvmlInit_v2")
        return self

    def __exit__(self, *_error: object) -> None:
        self._library.nvmlShutdown()

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(f"{name} answered {status}")

    def _number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int:
        value = kind()
        self._call(name, *arguments, ctypes.byref(value))
        return value.value

    def _text(self, name: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(_TEXT)
        self._call(name, *arguments, buffer, ctypes.c_uint(_TEXT))
        return buffer.value.decode(errors="replace")

    def driver(self) -> str:
        """Return the driver's version."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        """Return the number of GPUs."""
        return self._number("nvmlDeviceGetCount_v2")

    def _handle(self, number: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(handle))
        return handle

    def energy_mj(self, number: int) -> int:
        """Return the energy in mJ that a GPU has used since its driver was loaded."""
        return self._number("nvmlDeviceGetTotalEnergyConsumption", self._handle(number), kind=ctypes.c_ulonglong)

    def device(self, number: int) -> dict[str, Any]:
        """Return the state of one GPU; values that it cannot report are None."""
        handle = self._handle(number)

        def ask(name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
            return attempt(lambda: self._number(name, handle, *arguments, kind=kind))

        throttle = ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)
        return {
            "name": attempt(lambda: self._text("nvmlDeviceGetName", handle)),
            "uuid": attempt(lambda: self._text("nvmlDeviceGetUUID", handle)),
            "clocks": {name: ask("nvmlDeviceGetClockInfo", ctypes.c_uint(kind)) for name, kind in _CLOCKS.items()},
            "largest_clocks": {
                name: ask("nvmlDeviceGetMaxClockInfo", ctypes.c_uint(kind)) for name, kind in _CLOCKS.items()
            },
            "throttle": None if throttle is None else throttle_reasons(throttle),
            "temperature_c": ask("nvmlDeviceGetTemperature", ctypes.c_uint(0)),
            "power_mw": ask("nvmlDeviceGetPowerUsage"),
            "power_limit_mw": ask("nvmlDeviceGetEnforcedPowerLimit"),
            "persistence": ask("nvmlDeviceGetPersistenceMode"),
            "compute_mode": ask("nvmlDeviceGetComputeMode"),
            "ecc": attempt(lambda: self._pair("nvmlDeviceGetEccMode", handle)),
            "mig": attempt(lambda: self._pair("nvmlDeviceGetMigMode", handle)),
            "memory": attempt(lambda: self._memory(handle)),
            "processes": attempt(lambda: self._processes(handle)),
        }

    def _pair(self, name: str, handle: ctypes.c_void_p) -> dict[str, bool]:
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        self._call(name, handle, ctypes.byref(current), ctypes.byref(pending))
        return {"current": bool(current.value), "pending": bool(pending.value)}

    def _memory(self, handle: ctypes.c_void_p) -> dict[str, int]:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return {"total_bytes": memory.total, "used_bytes": memory.used}

    def _processes(self, handle: ctypes.c_void_p) -> list[int]:
        """Return the ids of all processes that compute on the GPU, as the host numbers them."""
        count = ctypes.c_uint(_MOST_PROCESSES)
        processes = (_Process * _MOST_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), processes)
        return sorted(processes[index].pid for index in range(count.value))

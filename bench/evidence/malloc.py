"""The allocator that serves ``malloc``, and the options that it accepted."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Optional

from bench.evidence import rejected_allocator_settings, symbol_resolution
from bench.evidence.reading import attempt

# https://jemalloc.net/jemalloc.3.html, section "MALLCTL NAMESPACE"
_JEMALLOC_OPTIONS = {
    "narenas": ctypes.c_uint,
    "oversize_threshold": ctypes.c_size_t,
    "background_thread": ctypes.c_bool,
    "dirty_decay_ms": ctypes.c_ssize_t,
    "muzzy_decay_ms": ctypes.c_ssize_t,
    "metadata_thp": ctypes.c_char_p,
    "thp": ctypes.c_char_p,
    "percpu_arena": ctypes.c_char_p,
    "tcache": ctypes.c_bool,
    "tcache_max": ctypes.c_size_t,
    "lg_tcache_max": ctypes.c_size_t,
    "retain": ctypes.c_bool,
    "dss": ctypes.c_char_p,
    "abort_conf": ctypes.c_bool,
    "max_background_threads": ctypes.c_size_t,
}
# https://gperftools.github.io/gperftools/tcmalloc.html, "Generic Tcmalloc Status"
_TCMALLOC_PROPERTIES = (
    "max_total_thread_cache_bytes", "aggressive_memory_decommit", "sampling_period_bytes", "heap_limit_mb",
)  # fmt: skip

_MALLOC = "glibc.malloc."

Read = tuple[Optional[str], Mapping[str, Any]]


def collect() -> dict[str, Any] | None:
    """Return the evidence on the allocator."""
    path = symbol_resolution.symbol_owner("malloc")
    if path is None:
        return None
    library = symbol_resolution.short_name(path)
    handle = symbol_resolution.library(path)
    reader = _READERS.get(library)
    version, all_options = reader(handle) if reader else (None, {})
    options = {name: value for name, value in all_options.items() if value is not None}
    return {
        "library": library,
        "path": os.path.realpath(path),
        "version": version,
        "options": options,
        "refused": attempt(
            lambda: sorted(
                rejected_allocator_settings.rejected_settings(library, path, options, os.environ, _tunables())
            )
        ),
        "arenas": attempt(lambda: _arenas(handle)) if library == "libc" else None,
    }


def _jemalloc(handle: ctypes.CDLL) -> Read:
    options = {
        name: attempt(partial(_mallctl, handle, "opt." + name, kind)) for name, kind in _JEMALLOC_OPTIONS.items()
    }
    return attempt(lambda: _mallctl(handle, "version", ctypes.c_char_p)), options


def _mallctl(handle: ctypes.CDLL, name: str, kind: Any) -> Any:
    value, size = kind(), ctypes.c_size_t(ctypes.sizeof(kind))
    if handle.mallctl(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    return value.value.decode() if isinstance(value.value, bytes) else value.value


def _mimalloc(handle: ctypes.CDLL) -> Read:
    number = attempt(lambda: symbol_resolution.call_function(handle, "mi_version"))
    # 209 is 2.0.9, and five digits are 3.1.0 and later: MI_MALLOC_VERSION in mimalloc.h
    version = None
    if number:
        base = 10 if number < 10000 else 100
        version = f"{number // base**2}.{number // base % base}.{number % base}"
    return version, _settings("MIMALLOC_")


def _tcmalloc(handle: ctypes.CDLL) -> Read:
    options = {name: attempt(partial(_tcmalloc_property, handle, name)) for name in _TCMALLOC_PROPERTIES}
    return attempt(lambda: _tcmalloc_version(handle)), options


def _tcmalloc_version(handle: ctypes.CDLL) -> str:
    handle.tc_version.restype = ctypes.c_char_p
    return handle.tc_version(None, None, None).decode().replace("gperftools ", "")


def _tcmalloc_property(handle: ctypes.CDLL, name: str) -> int | None:
    value = ctypes.c_size_t()
    is_known = handle.MallocExtension_GetNumericProperty(f"tcmalloc.{name}".encode(), ctypes.byref(value))
    return value.value if is_known else None


def _glibc(handle: ctypes.CDLL) -> Read:
    requested, options = os.environ.get("GLIBC_TUNABLES", ""), _settings("MALLOC_")
    for name, value in (attempt(_tunables) or {}).items():
        # glibc lists 0 for a tunable that is not set; the record must not show that as a value.
        if name.startswith(_MALLOC) and (value or f"{name[len('glibc.') :]}=" in requested):
            options[name[len(_MALLOC) :]] = value
    version = attempt(lambda: symbol_resolution.call_function(handle, "gnu_get_libc_version", ctypes.c_char_p).decode())
    return version, options


def _arenas(handle: ctypes.CDLL) -> int:
    """Return the number of malloc heaps: malloc_info(3) writes one ``<heap nr="...">`` for each."""
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    handle.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(handle.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    if not stream:
        raise OSError(ctypes.get_errno(), "open_memstream")
    handle.malloc_info(0, stream)
    handle.fclose(stream)
    heap_count = (text.value or b"").count(b"<heap nr=")
    handle.free(text)
    return heap_count


def _tunables() -> dict[str, int]:
    """Return glibc's tunables as its loader parsed them (listed since glibc 2.33); {} if it lists none."""
    loader = next(path for path in symbol_resolution.loaded_paths() if re.search(r"/ld-(linux[^/]*|2[^/]*)\.so", path))
    result = subprocess.run(
        [loader, "--list-tunables"], capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL
    )
    tunables = re.findall(r"^(glibc\.[\w.]+): (-?\w+)", result.stdout.decode(errors="replace"), re.MULTILINE)
    return {name: int(value, 0) for name, value in tunables}


def _settings(prefix: str) -> dict[str, Any]:
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


_READERS: Mapping[str, Callable[[ctypes.CDLL], Read]] = {
    "libjemalloc": _jemalloc,
    "libmimalloc": _mimalloc,
    "libtcmalloc": _tcmalloc,
    "libc": _glibc,
}

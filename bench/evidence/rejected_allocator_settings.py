"""Rejected allocator settings: misspelt names, values out of range, and variables of another allocator.

Most allocators ignore unknown settings silently.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bench.evidence.reading import attempt

#: Options that jemalloc accepts but does not list in its mallctl tree (jemalloc_init_conf).
_UNNAMED = {"slab_sizes", "bin_shards", "tcache_ncached_max", "lg_tcache_max"}
#: jemalloc turns a value below its smallest large size class into 0, "no threshold" (arena_init_huge in arena.c).
_ZERO_BELOW = {"oversize_threshold": 4 * mmap.PAGESIZE}
#: Variables that only one allocator reads.
_READER = {"MALLOC_CONF": "libjemalloc", "MIMALLOC_": "libmimalloc", "TCMALLOC_": "libtcmalloc"}
#: https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html, "env_alias"
_GLIBC_VARIABLES = {
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_CHECK_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_PERTURB_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TRACE",
}


def rejected_settings(
    library: str, path: str, options: Mapping[str, Any], variables: Mapping[str, str], tunables: Mapping[str, int]
) -> Iterator[str]:
    """Yield ``NAME: setting`` for each setting in the environment variables that ``library`` at ``path`` rejected.

    ``options`` are those it reports as accepted, ``tunables`` all that glibc's loader lists ({} if it lists none).
    """
    for name, value in variables.items():
        reader = next((owner for start, owner in _READER.items() if name.startswith(start)), None)
        if name == "GLIBC_TUNABLES":
            yield from (f"{name}: {item}" for item in _tunables(value, library, tunables))
        elif name.startswith("MALLOC_") and not reader:
            if library != "libc" or name not in _GLIBC_VARIABLES:
                yield f"{name}: {value}"
        elif reader and reader != library:
            yield f"{name}: {value}"
        elif reader == "libjemalloc":
            yield from (f"{name}: {item}" for item in _jemalloc(value, options))
        elif reader and not _contains_name(path, name, reader):
            yield f"{name}: {value}"


def _tunables(value: str, library: str, listed: Mapping[str, int]) -> Iterator[str]:
    for item in filter(None, value.split(":")):
        name, _, text = item.partition("=")
        is_other_library = name.startswith("glibc.malloc.") and library != "libc"
        if is_other_library or (listed and listed.get(name) != attempt(partial(int, text, 0))):
            yield item


def _jemalloc(value: str, options: Mapping[str, Any]) -> Iterator[str]:
    for item in filter(None, value.split(",")):
        name, _, text = item.partition(":")
        if not _is_known(name) or not _is_accepted(options.get(name), text, _ZERO_BELOW.get(name, 0)):
            yield item


def _is_known(name: str) -> bool:
    parts, length = (ctypes.c_size_t * 8)(), ctypes.c_size_t(8)
    error_code = ctypes.CDLL(None).mallctlnametomib(f"opt.{name}".encode(), parts, ctypes.byref(length))
    return name in _UNNAMED or not error_code


def _is_accepted(has: Any, text: str, zero_below: int) -> bool:
    if isinstance(has, bool):
        return text == ("true" if has else "false")
    if isinstance(has, int):
        requested = attempt(lambda: int(text, 0))
        return requested is None or has == (0 if 0 <= requested < zero_below else requested)
    return has is None or has == text


def _contains_name(path: str, name: str, reader: str) -> bool:
    """Return whether a library contains a variable's name; mimalloc contains only its end, in lower case."""
    searched = name[len("MIMALLOC_") :].lower() if reader == "libmimalloc" else name
    with open(path, "rb") as file:
        return searched.encode() + b"\0" in file.read()

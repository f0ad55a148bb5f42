"""Queries of the dynamic linker: which library a symbol resolves to.

/proc/self/maps is not enough: two OpenMP runtimes may be loaded while torch uses one.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import partial
from typing import Any

from bench.evidence import elf, proc_files
from bench.evidence.reading import attempt


class _Info(ctypes.Structure):
    _fields_ = (  # dladdr(3): Dl_info
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p),
    )  # fmt: skip


def loaded_paths() -> list[str]:
    """Return the shared libraries mapped into this process, sorted."""
    return sorted(proc_files.libraries("self"))


def library(path: str) -> ctypes.CDLL:
    """Return a handle of a library that is already loaded, without loading it."""
    return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)


def symbol_owner(symbol: str, library_name: str = "libtorch_cpu.so") -> str | None:
    """Return the path of the library that provides ``symbol`` to torch, or None if none defines it.

    Searches in the linker's order: the global scope, then PyTorch's library and its dependencies.
    """
    torch_paths = [path for path in attempt(loaded_paths) or [] if os.path.basename(path).startswith(library_name)]
    for scope in (None, *torch_paths):
        path = attempt(partial(_owner_in, scope, symbol))
        if path and ".so" in os.path.basename(path):
            return path
        if path:
            return attempt(lambda: _first_library_with(symbol)) or path
    return None


def bound_owner(path: str, symbol: str) -> str | None:
    """Return the library whose ``symbol`` a loaded library calls, or None if it is not bound yet.

    Reads the caller's jump table: a copy loaded later, or with local scope only, is not called.
    """
    slot, base = elf.jump_slot(path, symbol), dict(_loaded_objects()).get(path)
    address = ctypes.c_void_p.from_address(base + slot).value if slot is not None and base else None
    file = _file_of(ctypes.c_void_p(address)) if address else None
    return file if file != path else None


def _first_library_with(symbol: str) -> str | None:
    """Return the first library in the linker's order that defines ``symbol``.

    An executable that is not position independent (Debian's python3) and takes a function's address has a stub for it.
    Calls still go to the first library: https://www.airs.com/blog/archives/41
    """
    for path, _ in _loaded_objects():
        owner_path = attempt(partial(_owner_in, path, symbol))
        if owner_path and os.path.realpath(owner_path) == os.path.realpath(path):
            return path
    return None


class _Object(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("name", ctypes.c_char_p))  # the first fields of struct dl_phdr_info


def _loaded_objects() -> list[tuple[str, int]]:
    """Return path and base address of each loaded library, in the linker's search order: preloaded ones first."""
    objects = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Object), ctypes.c_size_t, ctypes.c_void_p)
    def note(info: Any, _size: int, _data: int) -> int:
        objects.append((os.fsdecode(info.contents.name or b""), info.contents.base or 0))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(note, None)
    return [info for info in objects if "/" in info[0]]


def _owner_in(path: str | None, symbol: str) -> str | None:
    """Return the library in which a loaded one, or with None the whole process, finds a symbol."""
    handle = library(path) if path else ctypes.CDLL(None)
    return _file_of(ctypes.cast(getattr(handle, symbol), ctypes.c_void_p))


def _file_of(address: ctypes.c_void_p) -> str | None:
    info = _Info()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Info))
    return os.fsdecode(info.file) if dladdr(address, ctypes.byref(info)) and info.file else None


def short_name(path: str) -> str:
    """Return a library's family name: libgomp for ``libgomp-a34b3233.so.1``, libiomp5 for a link to it."""
    name = os.path.basename(os.path.realpath(path))
    stem = name.split(".so", 1)[0]
    for family in ("libtcmalloc", "libmimalloc", "libjemalloc", "libgomp", "libiomp5", "libomp"):
        if stem.startswith(family):
            return family
    return re.split(r"-[0-9a-f.]+$", stem)[0]


def call_function(handle: ctypes.CDLL, name: str, result: Any = ctypes.c_int) -> Any:
    """Call a C function without arguments; return None if the library does not have it."""
    function = getattr(handle, name, None)
    if function is None:
        return None
    function.restype = result
    function.argtypes = ()
    return function()

"""C++ names as people write them, with the C++ runtime's own demangler."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _library() -> Any:
    for name in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            demangler = ctypes.CDLL(name).__cxa_demangle
        except (OSError, AttributeError):
            continue
        demangler.restype = ctypes.c_void_p
        demangler.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        return demangler
    return None


def demangle(name: str) -> str:
    """The demangled name; the name itself where it is not mangled or no C++ runtime is there."""
    demangler = _library() if name.startswith("_Z") else None
    if demangler is None:
        return name
    status = ctypes.c_int()
    found = demangler(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not found:
        return name
    try:
        return ctypes.string_at(found).decode(errors="replace")
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(found)

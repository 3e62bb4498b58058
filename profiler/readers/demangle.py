"""C++ names as people write them, with the C++ runtime's own demangler.

A short mangled name can stand for a text of any length (each type may be a pair of the one before), so names from other
people's files are demangled by a child process with little memory and little time; what kills it keeps its raw name.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_SECONDS = 10
_BYTES = 512 << 20
#: A file with more names than this that kill the demangler is no trace.
_CHILDREN = 4
#: Real kernels of Composable Kernel and CUTLASS have mangled names of up to some ten thousand letters.
_LONGEST = 100_000
#: Half types that runtimes older than GCC 13 do not know, a type of the same grammar that they know and kernels never
#: have, how that one reads, and how the half type does.
_NEW_TYPES = (
    ("DF16b", "Df", "decimal32", "std::bfloat16_t"),
    ("DF16_", "Dd", "decimal64", "_Float16"),
)


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
    if not name.startswith("_Z"):
        return name
    found = _demangled(name)
    if found == name and any(new in name for new, *_ in _NEW_TYPES):
        stand_in = name
        for new, old, shown, _ in _NEW_TYPES:
            if old in name or shown in name:
                return name
            stand_in = stand_in.replace(new, old)
        found = _demangled(stand_in)
        if found == stand_in:
            return name
        for _, _, shown, meant in _NEW_TYPES:
            found = found.replace(shown, meant)
    return found


def _demangled(name: str) -> str:
    demangler = _library()
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


def demangle_all(names: Iterable[str]) -> dict[str, str]:
    """Mangled names of a file to readable ones; a name that is not mangled, or cannot be read, is left out."""
    wanted = [name for name in dict.fromkeys(names) if name.startswith("_Z") and name.isascii() and name.isprintable()]
    wanted = [name for name in wanted if len(name) <= _LONGEST]
    found: dict[str, str] = {}
    for _ in range(_CHILDREN):
        if not wanted:
            break
        lines = _child(wanted)
        found |= dict(zip(wanted, lines, strict=False))
        # The first name without an answer ended the child.
        wanted = wanted[len(lines) + 1 :]
    left = [name for name, text in found.items() if text == name]
    if left and (tool := shutil.which("c++filt") or shutil.which("llvm-cxxfilt")):
        # binutils and LLVM know newer grammar than a runtime of some years ago.
        found |= dict(zip(left, _child(left, tool), strict=False))
    return {name: text for name, text in found.items() if text != name}


def _child(names: list[str], tool: str = "") -> list[str]:
    """One line for each name, in order, as far as the child came. `tool` does the work instead of the C++ runtime."""
    if not sys.executable:
        return []
    command = [sys.executable, "-I", "-S", str(Path(__file__)), str(_BYTES), str(_SECONDS), tool]
    given = "".join(f"{name}\n" for name in names).encode()
    try:
        done = subprocess.run(
            command, input=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=3 * _SECONDS
        )
        said = done.stdout
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    except OSError:
        return []
    # What stands after the last line feed is a line that was cut.
    return said.decode(errors="replace").split("\n")[:-1]


def _serve() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]),) * 2)
    except (ImportError, ValueError, OSError):
        return
    if sys.argv[3]:
        os.execv(sys.argv[3], sys.argv[3:])
    for line in sys.stdin:
        name = line.rstrip("\n")
        text = demangle(name)
        # A kernel's name of a megabyte helps nobody.
        sys.stdout.write((name if len(text) > 10 * _LONGEST or "\n" in text else text) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()

"""Tracing the built-in model with rocprofv3, on HIP builds of torch.

Written from rocprofv3's documentation and tested with stand-ins: it was not run on an AMD GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusionscope.profiler.capture import wrappers
from fusionscope.profiler.capture.plan import CaptureError

_LIBRARIES = ("librocprofiler-sdk-roctx.so", "librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0")


def require() -> Path:
    """rocprofv3. Raises CaptureError where there is none."""
    return wrappers.require_rocprofv3()


def prefix(path: Path, folder: Path, processes: int) -> list[str]:
    """What goes before a rank's own command: only what lies between resume and pause is recorded."""
    # With several ranks each has its own rocprofv3, which reads the rank from the environment of its process.
    rank = "0" if processes == 1 else "%env{RANK}%"
    return [
        *(str(path), "--kernel-trace", "--hip-trace", "--marker-trace", "--selected-regions"),
        *("--output-format", "json", "-d", str(folder), "-o", f"rank{rank}", "--"),
    ]


def trace_file(folder: Path, rank: int) -> Path:
    """The trace of a rank. Raises CaptureError where rocprofv3 left none."""
    found = sorted(path for path in folder.rglob(f"rank{rank}_*.json") if path.stat().st_size)
    if not found:
        raise CaptureError(
            f"rocprofv3 recorded nothing for rank {rank}: `rocprofv3 --version` and the log may say why, or use "
            "--profiler torch."
        )
    return found[0]


@contextmanager
def recording(library: Any = None) -> Iterator[None]:
    """In a rank that runs under rocprofv3: record what runs inside. Raises CaptureError without roctx."""
    import torch

    roctx = _roctx() if library is None else library
    torch.cuda.synchronize()
    roctx.roctxProfilerResume(ctypes.c_uint64(0))
    try:
        yield
        torch.cuda.synchronize()
    finally:
        roctx.roctxProfilerPause(ctypes.c_uint64(0))


def _roctx() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CaptureError(
        f"{_LIBRARIES[0]} cannot be loaded, so rocprofv3 cannot be told when to record: put ROCm's lib folder on "
        "LD_LIBRARY_PATH, or use --profiler torch."
    )

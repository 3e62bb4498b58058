"""Tracing with torch.profiler (Kineto), on CUDA and on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def trace_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves its trace."""
    return folder / f"rank{rank}.kineto.json.gz"


@contextmanager
def recording(folder: Path, rank: int, device: str) -> Iterator[None]:
    """Record what runs inside; everything must have ended on the device before the block does."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        yield
    profiler.export_chrome_trace(str(trace_file(folder, rank)))

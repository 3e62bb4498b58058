"""A store of pairs for the text of a pull request: each a case that a reviewer meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from literal_traces import FUSED_RUN, SPLIT, kernels, timings

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace

KNOWN: dict[str, Any] = {"model": "m", "tp": 4, "batch": 4, "context": 1024, "device": "cuda", "tool_version": "1"}
CPU: dict[str, Any] = {
    "device": "cpu",
    "labels": ["built-in model", "cpu", "scaled shapes"],
    "machine": {"cpu": "CPU X"},
}


def noisy(step: int) -> list[list[int]]:
    """Blocks of untraced times, ns, a few apart in and between blocks."""
    return [[step + (37 * block + 11 * k) % 13 - 6 for k in range(8)] for block in range(8)]


def fill(folder: Path) -> None:
    """Saves split and fused (2 us faster), worse and equal (fused, but no faster), 16 and fused16 at another batch,
    a pair that a CPU ran, and captures that were made once (the others were made in three processes)."""
    fused: dict[str, Any] = {"environment": {"SGLANG_FUSED": "1"}}
    gpu: dict[str, Any] = {"machine": {"gpu": "NVIDIA H200"}}
    cases: dict[str, tuple[list[Any], int, dict[str, Any]]] = {
        "split": (SPLIT, 29_500, gpu),
        "fused": (FUSED_RUN, 27_500, gpu | fused),
        "worse": (FUSED_RUN, 30_500, gpu | fused),
        "equal": (FUSED_RUN, 29_500, gpu | fused),
        "split16": (SPLIT, 39_500, gpu | {"batch": 16}),
        "fused16": (FUSED_RUN, 39_450, gpu | fused | {"batch": 16}),
        "cpu-split": (SPLIT, 29_500, CPU),
        "cpu-fused": (FUSED_RUN, 27_500, CPU | fused),
        "once-split": (SPLIT, 29_500, gpu),
        "once-fused": (FUSED_RUN, 27_500, gpu | fused),
        "once-split-2": (SPLIT, 29_520, gpu),
        "once-fused-2": (FUSED_RUN, 27_530, gpu | fused),
        "once-split-3": (SPLIT, 29_510, gpu),
        "once-fused-3": (FUSED_RUN, 27_490, gpu | fused),
    }
    for name, (launches, step, info) in cases.items():
        processes = 1 if name.startswith("once") else 3
        trace = Trace(kernels=kernels([launches] * 6), timings=timings(noisy(step), processes=processes))
        Store(folder).save(RunInfo(**{**KNOWN, **info, "name": name}), trace)

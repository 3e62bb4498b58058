"""The sample traces beside the repository, and the exact numbers that an independent reader counted in each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusionscope.profiler.trace import Trace

SAMPLES = Path(__file__).parents[2] / "../shared/samples"
needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="../shared/samples is not here")


def oracle(name: str) -> dict[str, Any]:
    """What is known of one sample."""
    return dict(json.loads((SAMPLES / "oracle.json").read_text())[name]["oracle"])


def busy(trace: Trace, kind: str = "kernel") -> list[int]:
    """Union of the kernels' intervals of each device, ns, in the order of devices."""
    found = []
    rows = trace.kernels[trace.kernels["kind"] == kind]
    for _, part in rows.sort_values("start_ns").groupby("device"):
        total, end = 0, 0
        for start, duration in zip(part["start_ns"], part["duration_ns"], strict=True):
            total += max(start + duration - max(start, end), 0)
            end = max(end, start + duration)
        found.append(total)
    return found


def agrees(trace: Trace, want: dict[str, Any]) -> None:
    """Every number that the oracle has, against the kernels of a trace."""
    kernels = trace.kernels[trace.kernels["kind"] == "kernel"]
    assert len(kernels) == want["kernels"]
    assert int(kernels["duration_ns"].sum()) == want["sum_ns"]
    if "first_ns" not in want:
        return
    assert int(kernels["start_ns"].min()) == want["first_ns"]
    assert int((kernels["start_ns"] + kernels["duration_ns"]).max()) == want["last_ns"]
    assert kernels["raw_name"].nunique() == want["distinct_names"]
    assert kernels["duration_ns"].median() == want["median_ns"]
    assert kernels[["device", "stream"]].drop_duplicates().shape[0] == want["streams"]
    assert busy(trace) == list(want["union_ns_per_device"].values())

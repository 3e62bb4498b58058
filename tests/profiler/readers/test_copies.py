from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.readers.copies import kind_of


@pytest.mark.parametrize(
    "name,kind,expected",
    [
        ("memcpy32_post", "kernel", "memcpy"),
        ("memset32_post", "kernel", "memset"),
        ("memcpy32_post_norm_kernel", "kernel", "kernel"),
        ("void my::memcpy32_post", "kernel", "kernel"),
        ("Memset (Device)", "memset", "memset"),
    ],
)
def test_the_drivers_own_copies_are_copies(name: str, kind: str, expected: str) -> None:
    assert kind_of(name, kind) == expected


def test_a_copy_node_is_no_launch_in_a_kineto_trace(tmp_path: Path) -> None:
    def event(name: str, ts: int) -> dict[str, object]:
        args = {"device": 0, "stream": 7, "correlation": 5}
        return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2, "args": args}

    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [event("gemm", 1), event("memcpy32_post", 4)]}))
    kernels = read_trace(file).kernels
    assert kernels["kind"].astype(str).tolist() == ["kernel", "memcpy"]

"""A store of runs that are small enough to work out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from literal_traces import FUSED_RUN, SPLIT, kernels, timings

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace, table

REPLAYS = 6
#: Blocks of untraced replay times, ns: 29.5 us split (fused: 2 us less), a few ns of noise.
TIMES = [[29_500, 29_504, 29_500, 29_496], [29_502, 29_500, 29_498, 29_500], [29_499, 29_501, 29_501, 29_503]]


def fill(folder: Path) -> None:
    """Saves the runs: traced is split without untraced times and provenance, once has one replay, empty nothing."""
    known: dict[str, Any] = {"model": "m", "tp": 4, "batch": 4, "context": 1024, "machine": {"gpu": "GPU"}}
    marked = table(
        "sites",
        {
            "boundary": ["ar_norm"] * 4,
            "subtype": ["residual"] * 4,
            "site": [0, 0, 1, 1],
            "layer": [0, 0, 1, 1],
            "node": [1, 2, 4, 5],
            "path": ["split"] * 4,
            "rank": [0] * 4,
            "graph": [3] * 4,
        },
    )
    split, fused = kernels([SPLIT] * REPLAYS), kernels([FUSED_RUN] * REPLAYS)
    faster = [[time - 2_000 for time in block] for block in TIMES]
    runs = {
        "split": Trace(kernels=split, sites=marked, timings=timings(TIMES)),
        "fused": Trace(kernels=fused, timings=timings(faster)),
        "traced": Trace(kernels=split),
        "eager": Trace(kernels=kernels([SPLIT], nodes=False).assign(replay=-1)),
        "once": Trace(kernels=kernels([SPLIT])),
        "empty": Trace(),
        "graph": Trace(graph_mode=True, timings=timings(TIMES, "graph-level trace")),
    }
    for name, trace in runs.items():
        labels = ["graph mode"] if name == "graph" else []
        environment = {"SGLANG_FUSED": "1"} if name == "fused" else {}
        command = ["fusionscope", "import", f"{name}.sqlite"]
        info = RunInfo(name=name, labels=labels, environment=environment, command=command, tool_version="1", **known)
        Store(folder).save(info, trace)

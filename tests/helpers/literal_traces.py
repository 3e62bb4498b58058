"""Hand-made traces: literal launches, so that every expected number can be worked out on paper."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fusionscope.profiler.trace import table

#: (name, start_ns, duration_ns) or with a stream at the end.
Launch = tuple[str, int, int] | tuple[str, int, int, int]


def kernels(replays: Sequence[Sequence[Launch]], *, nodes: bool = True, gap: int = 1_000_000) -> pd.DataFrame:
    """The kernels table of replays of one graph, each `gap` ns after the one before."""
    rows = []
    for replay, launches in enumerate(replays):
        for node, launch in enumerate(launches):
            name, start, duration, *stream = launch
            rows.append(
                {
                    "rank": 0,
                    "process": 1,
                    "device": 0,
                    "stream": stream[0] if stream else 7,
                    "kind": "kernel",
                    "name": name,
                    "raw_name": name,
                    "start_ns": start + gap * replay,
                    "duration_ns": duration,
                    "correlation": 100 + replay,
                    "graph": 3 if nodes else -1,
                    "node": node if nodes else -1,
                    "replay": replay,
                }
            )
    return table("kernels", pd.DataFrame(rows))


AR, NORM, GEMM, FUSED = (
    "one_shot_all_reduce_kernel",
    "fused_add_rmsnorm_kernel",
    "nvjet_sm90_gemm",
    "all_reduce_pull_norm_kernel",
)

#: Two layers of GEMM (10 us), all-reduce (2 us), norm (3 us) with gaps of 100 ns: 30.5 us.
SPLIT: list[Launch] = [
    (GEMM, 0, 10_000),
    (AR, 10_100, 2_000),
    (NORM, 12_200, 3_000),
    (GEMM, 15_300, 10_000),
    (AR, 25_400, 2_000),
    (NORM, 27_500, 3_000),
]
#: The same with one launch of 4 us a site: 28.3 us.
FUSED_RUN: list[Launch] = [
    (GEMM, 0, 10_000),
    (FUSED, 10_100, 4_000),
    (GEMM, 14_200, 10_000),
    (FUSED, 24_300, 4_000),
]


def timings(per_block: Sequence[Sequence[int]], source: str = "untraced", processes: int = 1) -> pd.DataFrame:
    """The timings table of processes that take the same blocks of ns, and 1 ns more in each further process."""
    rows = [(p, b, t + p) for p in range(processes) for b, block in enumerate(per_block) for t in block]
    process, block, times = (list(column) for column in zip(*rows, strict=True))
    data = {"rank": 0, "process": [p + 1 for p in process], "block": block, "duration_ns": times}
    return table("timings", pd.DataFrame(data).assign(arm="", source=source))

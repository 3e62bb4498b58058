"""How matching boundaries grows with the launches of a forward: time a launch at 5,000, 20,000 and 80,000 of them.

python benchmarks/rules.py
"""

from __future__ import annotations

import time

import numpy as np
import pandas as pd

from fusionscope.analysis import ruleset
from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.matching import match_sites

LAYER = (
    "nvjet_gemm", "one_shot_all_reduce_kernel", "fused_add_rmsnorm_kernel", "direct_copy_kernel_cuda",
    "add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0", "direct_copy_kernel_cuda",
    "add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0", "rotary_embedding", "store_kvcache", "fmha",
)  # fmt: skip


def forward(launches: int) -> tuple[Forward, list[str]]:
    """A forward of one execution, layer after layer on one stream."""
    names = [LAYER[k % len(LAYER)] for k in range(launches)]
    start = np.arange(launches, dtype=np.int64)[None] * 10
    columns = {"name": names, "raw_name": names, "stream": 7, "device": 0, "graph": -1, "node": -1}
    duration = np.full_like(start, 5)
    return Forward("k", 0, pd.DataFrame(columns), start, duration, start // 10, 1, 1), names


def main() -> None:
    """Print microseconds a launch, and the ratio of the largest to the smallest forward."""
    rules = ruleset.load(["attention"])
    each = {}
    for launches in (5_000, 20_000, 80_000):
        made, names = forward(launches)
        roles = [rules.role_of(name) for name in names[: len(LAYER)]] * (launches // len(LAYER))
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            found = match_sites(made, roles, names, names, rules)
            times.append(time.perf_counter() - begin)
        each[launches] = min(times) / launches * 1e6
        print(f"{launches:>7,} launches: {min(times):.3f} s, {each[launches]:.1f} us a launch, "
              f"{len(found['qk_norm_rope'])} qk_norm_rope sites")  # fmt: skip
    print(f"time a launch, 80,000 to 5,000: {each[80_000] / each[5_000]:.2f} x")


if __name__ == "__main__":
    main()

"""A hand-made pair of runs with the published numbers of one pull request (SGLang, GLM-5.3-Flash, MI355X TP4).

Published: 1664 -> 1619 launches, 9.78 -> 9.61 ms of kernel time, 45 sites, batch 4, the kernels' names, the variable,
the image and the commit. The times of single kernels and the untraced steps are made up so that they add up to those.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from literal_traces import Launch, kernels, timings

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table

REDUCE = "void aiter::cross_device_reduce_1stage<__hip_bfloat16, 4>(aiter::RankData*, int)"
POST = "mhc_post_kernel"
FUSED = "void aiter::allreduce_mhc_post_large_m_kernel<__hip_bfloat16, 4>(aiter::RankData*, int)"
ATTENTION, MOE, GEMM, TAIL = "mla_decode_kernel", "fused_moe_kernel", "gemm_a16w16", "lm_head_gemm"
LAYERS, GEMMS, RANKS, REPLAYS = 45, 1392, 4, 3


def _forward(fused: bool, rank: int) -> list[Launch]:
    """One forward: 45 layers whose FFN exit is all-reduce + mhc_post, or one launch; higher ranks wait longer."""
    wait = 400 * rank
    elsewhere = (8_040 if fused else 8_060) + wait
    each: list[tuple[str, int]] = [(REDUCE, elsewhere)]
    for layer in range(LAYERS):
        each += [(ATTENTION, 30_000), (REDUCE, elsewhere), (POST, 4_300)]
        each += [(GEMM, 3_300)] * (GEMMS // LAYERS + (layer < GEMMS % LAYERS))
        each += [(MOE, 59_700)]
        each += [(FUSED, 8_620 + wait)] if fused else [(REDUCE, 8_100 + wait), (POST, 4_300)]
    each.append((TAIL, 28_700 if fused else 27_600))
    launches: list[Launch] = []
    at = 0
    for name, duration in each:
        launches.append((name, at, duration))
        at += duration
    return launches


def _run(fused: bool) -> Run:
    every = [
        kernels([_forward(fused, rank)] * REPLAYS, gap=20_000_000)
        .astype({"name": str, "raw_name": str, "kind": str})
        .assign(rank=rank)
        for rank in range(RANKS)
    ]
    step = 9_590_000 if fused else 9_742_000
    times = timings([[step + 2_000 * (block % 3), step + 4_000, step, step + 2_000] for block in range(20)])
    trace = Trace(kernels=table("kernels", pd.concat(every, ignore_index=True)), timings=times, world_size=RANKS)
    environment = {"SGLANG_ROCM_FUSED_AR_MHC_POST": "1"} if fused else {}
    info = RunInfo(
        id="fused" if fused else "split",
        model="GLM-5.3-Flash-Quark-MXFP4",
        tp=4,
        batch=4,
        context=8192,
        world_size=RANKS,
        machine={"gpu": "MI355X"},
        environment=environment,
        settings={"engine": "SGLang", "image": "rocm/sgl-dev:v0.5.20-rocm10-mi35x-20260928", "commit": "ebdeba2fee"},
        tool_version="1",
    )
    return Run(info, trace, Path())


def pair() -> tuple[Run, Run]:
    """The run before and the run after."""
    return _run(False), _run(True)

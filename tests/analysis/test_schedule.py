"""The re-timed schedule on literal traces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from literal_traces import AR, FUSED_RUN, GEMM, NORM, SPLIT

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.schedule import build
from fusionscope.analysis.sites import Site
from fusionscope.profiler.trace import table


def test_fusing_both_sites_gives_the_fused_span(made: Callable[..., Analysed]) -> None:
    split, fused = made([SPLIT]), made([FUSED_RUN])
    sites = split.attribution.sites["ar_norm"]
    span = split.schedule().retimed_span(sites, np.full((2, 1), 4_000.0))
    assert span.tolist() == fused.forward.span.tolist() == [28_300]


def test_removing_the_sites_leaves_the_gemms_and_one_gap(made: Callable[..., Analysed]) -> None:
    split = made([SPLIT])
    assert split.schedule().retimed_span(split.attribution.sites["ar_norm"]).tolist() == [20_100]


def test_removing_the_first_launch_counts_from_where_it_began(made: Callable[..., Analysed]) -> None:
    split = made([SPLIT])
    first = Site("x", "", -1, (0,), 4)
    assert split.schedule().retimed_span([first]).tolist() == [30_500 - 10_000]


def test_work_hidden_behind_another_stream_saves_nothing(made: Callable[..., Analysed]) -> None:
    # The norm waits for the long GEMM of stream 8: a faster all-reduce on stream 7 does not let it start earlier.
    run = made([[(GEMM, 0, 1_000, 7), (GEMM, 50, 9_000, 8), (AR, 1_100, 2_000, 7), (NORM, 9_150, 500, 7)]])
    hidden = Site("x", "", -1, (2,), 4)
    assert run.schedule().retimed_span([hidden], np.full((1, 1), 500.0)).tolist() == run.forward.span.tolist()


def test_overlap_under_programmatic_launch_is_kept(made: Callable[..., Analysed]) -> None:
    run = made([[(GEMM, 0, 1_000), (AR, 900, 500), (NORM, 1_300, 400)]])
    assert run.schedule().self_check()
    shorter = Site("x", "", -1, (0,), 4)
    # The follower starts 100 ns before its predecessor ends, also when that takes half as long.
    assert run.schedule().retimed_span([shorter], np.full((1, 1), 500.0)).tolist() == [1_200]


def test_real_edges_replace_inferred_ones(made: Callable[..., Analysed]) -> None:
    run = made([[(GEMM, 0, 1_000, 7), (GEMM, 0, 800, 8), (AR, 1_100, 500, 7)]])
    edges = table("edges", pd.DataFrame({"rank": 0, "graph": 3, "source": [1], "target": [2]}))
    real = build(run.forward, edges)
    assert real.real_edges and real.waits_for == ((), (), (1,))
    assert real.self_check()
    backwards = table("edges", pd.DataFrame({"rank": 0, "graph": 3, "source": [2], "target": [1]}))
    assert not build(run.forward, backwards).real_edges


launches = st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 20), st.integers(1, 30)), min_size=1, max_size=14)


@given(launches, st.integers(1, 3))
def test_nothing_replaced_is_the_measured_span_exactly(shape: list[tuple[int, int, int]], replays: int) -> None:
    rng = np.random.default_rng(len(shape))
    at: dict[int, int] = {}
    rows: list[tuple[int, int]] = []
    for stream, gap, length in shape:
        begin = max(at.get(stream, 0) + gap, rows[-1][0] if rows else 0)
        rows.append((begin, length))
        at[stream] = begin + length
    start = np.array([[b for b, _ in rows]] * replays) + 10_000 * np.arange(replays)[:, None]
    duration = np.array([[d for _, d in rows]] * replays) + rng.integers(0, 3, (replays, len(rows)))
    nodes = pd.DataFrame({"name": "k", "raw_name": "k", "stream": [s for s, _, _ in shape], "device": 0,
                          "graph": -1, "node": -1})  # fmt: skip
    forward = Forward("k", 0, nodes, start, duration, start, replays, 1)
    assert build(forward).self_check()


@pytest.mark.parametrize(
    "file",
    [
        "kineto_b200_eager_tp8.json.gz",
        "kineto_mi300x_sglang_decode.json.gz",
        "kineto_mi300x_vllm_piecewise.json.gz",
        "h200_ar_norm/split.nsys.sqlite",
        "h200_tp2_skew/tp2.nsys.sqlite",
    ],
)
def test_every_sample_gives_its_span_back(file: str, samples: object) -> None:
    from pathlib import Path

    from fusionscope.analysis.forwards import forwards
    from fusionscope.profiler.importing import import_files

    trace = import_files([Path(str(samples)) / file])
    for forward in forwards(trace, int(trace.kernels["rank"].min())):
        assert build(forward).self_check()

"""The re-timed schedule on literal traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from literal_traces import AR, FUSED_RUN, GEMM, NORM, SPLIT, kernels

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.forwards import Forward, forwards
from fusionscope.analysis.schedule import build
from fusionscope.analysis.sites import Site
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.trace import Trace, table


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


def test_an_overlapping_launch_begins_before_no_launch_that_it_waited_for(made: Callable[..., Analysed]) -> None:
    # The norm overlaps 900 of the all-reduce's 1,000 ns: where that takes 200 ns, both begin together and no earlier.
    run = made([[(GEMM, 0, 1_000), (AR, 1_100, 1_000), (NORM, 1_200, 2_000)]])
    quick = Site("x", "", -1, (1,), 4)
    assert run.schedule().retimed_span([quick], np.full((1, 1), 200.0)).tolist() == [1_100 + 2_000]


def test_overlap_with_a_removed_launch_is_not_passed_on(made: Callable[..., Analysed]) -> None:
    # The all-reduce began 100 ns after the GEMM: that the norm overlaps it does not let the norm overlap the GEMM.
    run = made([[(GEMM, 0, 1_000), (AR, 1_100, 1_000), (NORM, 1_900, 2_000)]])
    assert run.schedule().retimed_span([Site("x", "", -1, (1,), 4)]).tolist() == [1_000 + 2_000]


def test_programmatic_edges_over_two_streams_keep_their_overlap(made: Callable[..., Analysed]) -> None:
    rows = [(GEMM, 0, 1_000, 7), (AR, 900, 600, 7), (GEMM, 100, 1_300, 8), (NORM, 1_450, 400, 7)]
    run = made([sorted(rows, key=lambda r: r[1])] * 2)
    # In order of start: GEMM 7 (node 0), GEMM 8 (1), all-reduce (2), norm (3), which waits for both streams.
    edges = pd.DataFrame({"rank": 0, "graph": 3, "source": [0, 2, 1], "target": [2, 3, 3], "programmatic": True})
    found = build(run.forward, table("edges", edges))
    assert found.real_edges and found.waits_for == ((), (), (0,), (1, 2)) and found.self_check()
    halved = Site("x", "", -1, (2,), 4)
    # The all-reduce ends at 1,200 instead of 1,500; the GEMM of stream 8 at 1,400 is then the later one.
    assert found.retimed_span([halved], np.full((1, 2), 300.0)).tolist() == [1_400 - 50 + 400] * 2


def test_a_hole_inside_a_site_is_credited_to_no_fusion(made: Callable[..., Analysed]) -> None:
    layer = [(GEMM, 0, 10_000), (AR, 10_001, 2_000), (NORM, 12_002, 3_000)]
    rows = [(n, s + 15_003 * k, d) for k in range(100) for n, s, d in layer]
    # Before the last norm the GPU waited 274 us for something else.
    rows[-1] = (NORM, rows[-1][1] + 274_000, 3_000)
    run = made([rows])
    sites = run.attribution.sites["ar_norm"]
    assert len(sites) == 100 and run.forward.abutting
    saved = run.forward.span - run.schedule().retimed_span(sites, np.full((100, 1), 5_000.0))
    assert saved.tolist() == [100]


def test_without_a_graph_no_gap_is_credited() -> None:
    trace = Trace(kernels=kernels([SPLIT], nodes=False).assign(replay=-1))
    forward = forwards(trace)[0]
    found = build(forward)
    assert all(found.by_host) and found.self_check()
    site = Site("ar_norm", "", -1, (1, 2), 4)
    assert (forward.span - found.retimed_span([site], np.full((1, 1), 5_000.0))).tolist() == [0]
    # Gone altogether it saves its launches' 5 us, and neither the gap in it nor the one before it.
    assert (forward.span - found.retimed_span([site])).tolist() == [5_000]


def test_between_the_graphs_of_a_piecewise_forward_the_host_decides() -> None:
    rows = kernels([SPLIT])
    rows["replay"] = [0, 0, 1, 1, 1, 1]
    step = table("ranges", {"name": ["decode_step"], "start_ns": [0], "end_ns": [40_000], "process": [1], "rank": [0]})
    (forward,) = forwards(Trace(kernels=rows, ranges=step))
    assert (forward.launches, forward.graph_launches) == (6, 2)
    assert build(forward).by_host == [False, False, True, False, False, False]
    first, second = Site("x", "", -1, (1, 2), 4), Site("x", "", -1, (4, 5), 4)
    for site, saved in ((first, 0), (second, 100)):
        span = build(forward).retimed_span([site], np.full((1, 1), 5_000.0))
        assert (forward.span - span).tolist() == [saved]


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
        "kineto_4ranks_nccl.json.gz",
        "kineto_b200_eager_tp8.json.gz",
        "kineto_mi300x_sglang_decode.json.gz",
        "kineto_mi300x_vllm_decode_full_graph.json.gz",
        "kineto_mi300x_vllm_piecewise.json.gz",
        "kineto_v100_graphs_rank1of2.json.gz",
        "nsys2026_2gpu_before.sqlite",
        "nsys2026_2gpu_after.sqlite",
        "h200_ar_norm/split.nsys.sqlite",
        "h200_ar_norm/fused.nsys.sqlite",
        "h200_ar_norm/split.kineto.json.gz",
        "h200_tp2_skew/tp2.nsys.sqlite",
        "h200_tp2_skew/tp2_rank0.kineto.json.gz",
        "h200_tp2_skew/tp2_rank1.kineto.json.gz",
        "rocprofv3_hipgraph_decode_kernel_trace.csv",
        "rpd_mi300_vllm_decode.rpd.gz",
        "synthetic_nsys_2gpu_node.sqlite.gz",
        "synthetic_rocpd_v3_decode.db.gz",
    ],
)
def test_every_replay_of_every_sample_gives_its_span_back(file: str, samples: Path) -> None:
    trace = import_files([samples / file])
    seen = 0
    for rank in sorted(trace.kernels["rank"].unique()):
        for forward in forwards(trace, int(rank)):
            assert (build(forward).retimed_span() == forward.span).all()
            seen += len(forward.span)
    assert seen


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 6)), min_size=1, max_size=30))
def test_a_launch_waits_for_its_stream_and_the_latest_end_on_the_others(launches: list[tuple[int, int, int]]) -> None:
    rows = [(GEMM, at, length, stream) for at, length, stream in sorted(launches)]
    forward = forwards(Trace(kernels=kernels([rows])))[0]
    streams = forward.nodes["stream"].tolist()
    start, end = forward.start[0], forward.start[0] + forward.duration[0]
    for column, waits in enumerate(build(forward).waits_for):
        last = {stream: c for c, stream in enumerate(streams[:column])}
        own = [last.pop(streams[column])] if streams[column] in last else []
        ended = [c for c in last.values() if end[c] <= start[column]]
        assert list(waits[: len(own)]) == own and len(waits) == len(own) + bool(ended)
        assert not ended or (end[waits[-1]] == max(end[c] for c in ended) and waits[-1] in ended)

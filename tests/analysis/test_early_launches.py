"""Gaps before launches that need not wait for an end: a trace shows them, and the untraced step has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from literal_traces import SPLIT, kernels

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.estimate import NEIGHBOURS_NS, Fused, estimate
from fusionscope.analysis.schedule import build
from fusionscope.analysis.target import EARLY_NS, target
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table


def with_edges(early: set[int]) -> Analysed:
    """Two layers of GEMM, all-reduce, norm in a row, 100 ns apart; launches in `early` are programmatic."""
    rows = [(k, k + 1, k + 1 in early) for k in range(5)]
    edges = pd.DataFrame(rows, columns=["source", "target", "programmatic"]).assign(rank=0, graph=3)
    trace = Trace(kernels=kernels([SPLIT] * 3), edges=table("edges", edges))
    return analyse(Run(RunInfo(), trace, Path()))


def saving(run: Analysed) -> float:
    fused = Fused(time_ns=4_000, source="candidate")
    return estimate(run.attribution, run.schedule(), "ar_norm", "", fused, run.untraced).saving_ns


def test_a_gap_inside_a_site_counts_unless_its_launch_is_early() -> None:
    assert saving(with_edges(set())) == 2 * (5_100 - 4_000)
    # The norms (nodes 2 and 5) are early: their gaps are the tracer's, and what is missing of 500 ns lies in them.
    assert saving(with_edges({2, 5})) == 2 * (5_100 - EARLY_NS - 4_000)


def test_what_an_early_launch_overlaps_is_no_cost_of_tracing() -> None:
    run = with_edges({2, 5})
    overlapping = replace(run.forward, start=run.forward.start - np.array([0, 0, 300, 0, 0, 800]))
    site = target(replace(run.attribution, forward=overlapping), build(overlapping, run.run.trace.edges), "ar_norm")
    # 100 ns behind became 200 ns before: 300 ns are left of the 500. 700 ns before: none are.
    assert site.early_gaps.tolist() == [[EARLY_NS - 200] * 3, [0] * 3]


def test_an_early_first_launch_of_a_site_changes_nothing() -> None:
    assert saving(with_edges({1, 4})) == saving(with_edges(set()))


def test_the_neighbours_error_grows_with_the_root_of_the_sites() -> None:
    run = with_edges(set())
    found = estimate(
        run.attribution, run.schedule(), "ar_norm", "", Fused(time_ns=4_000, source="candidate"), run.untraced
    )
    low, _ = found.interval_ns
    around = NEIGHBOURS_NS * 2**0.5
    assert found.saving_ns - low == pytest.approx((around**2 + 240**2) ** 0.5)

"""What holds of every estimate: monotone in the speed-up, never above the ceiling, nothing for a speed-up of 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_traces import AR, GEMM, NORM, Launch, kernels, timings

from fusionscope.analysis import amdahl
from fusionscope.analysis.analysed import analyse
from fusionscope.analysis.estimate import Fused, of_target
from fusionscope.analysis.schedule import build
from fusionscope.analysis.sites import Site
from fusionscope.analysis.target import EARLY_NS, Target, target
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table


@st.composite
def targets(draw: st.DrawFn) -> Target:
    """Two to four sites among GEMMs; gaps may be negative (programmatic launch), a second stream may run beside."""
    rows: list[Launch] = []
    at = 0
    for _ in range(draw(st.integers(2, 4))):
        for name in (GEMM, AR, NORM):
            gap = draw(st.integers(-200, 400)) if rows else 0
            length = draw(st.integers(300, 9_000))
            at = max(at + gap, rows[-1][1] if rows else 0)
            rows.append((name, at, length, 7))
            at += length
    if draw(st.booleans()):
        rows.append((GEMM, rows[0][1] + 1, draw(st.integers(100, 20_000)), 8))
    rows.sort(key=lambda row: row[1])
    replays = 4
    noise = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 40, (replays, len(rows)))
    moved = [[(n, s, d + int(j), q) for (n, s, d, q), j in zip(rows, jitter, strict=True)] for jitter in noise]  # type: ignore[misc]
    span = max(s + d for _, s, d, _ in rows)  # type: ignore[misc]
    untraced = draw(st.sampled_from([0.0, 0.6, 0.98]))
    times = timings([[int(span * untraced) + k for k in range(4)]] * 4) if untraced else table("timings")
    run = analyse(Run(RunInfo(), Trace(kernels=kernels(moved), timings=times), Path()))
    return target(run.attribution, run.schedule(), "ar_norm", "", run.untraced)


speedups = st.floats(1.0, 50.0)


@settings(max_examples=40, deadline=None)
@given(targets(), speedups, speedups)
def test_a_saving_is_monotone_and_never_above_the_ceiling(found: Target, one: float, other: float) -> None:
    slow, fast = (of_target(found, Fused(speedup=s)) for s in sorted((one, other)))
    assert slow.saving_ns <= fast.saving_ns + 1e-6
    assert fast.saving_ns <= fast.ceiling_ns + 1e-6
    assert fast.interval_ns[0] <= fast.saving_ns <= fast.interval_ns[1]
    assert fast.ceiling_ns <= found.step_ns


@settings(max_examples=25, deadline=None)
@given(targets(), st.floats(100, 20_000), st.floats(100, 20_000))
def test_a_longer_fused_kernel_saves_no_more(found: Target, one: float, other: float) -> None:
    quick, slow = (of_target(found, Fused(time_ns=t)) for t in sorted((one, other)))
    assert slow.saving_ns <= quick.saving_ns + 1e-6 and quick.saving_ns <= quick.ceiling_ns + 1e-6


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 5), st.integers(0, 400), st.integers(500, 5_000))
def test_a_speedup_of_one_saves_nothing(sites: int, gap: int, length: int) -> None:
    rows: list[Launch] = []
    at = 0
    for _ in range(sites):
        for name in (GEMM, AR, NORM):
            rows.append((name, at, length))
            at += length + gap
    run = analyse(Run(RunInfo(), Trace(kernels=kernels([rows] * 3), timings=timings([[at - 50] * 4] * 4)), Path()))
    found = of_target(target(run.attribution, run.schedule(), "ar_norm", "", run.untraced), Fused(speedup=1.0))
    assert found.saving_ns == pytest.approx(0, abs=1e-6) and found.amdahl_gain == 0


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 400), st.integers(1, 3))
def test_an_early_launch_saves_nothing_at_a_speedup_of_one_either(gap: int, launches: int) -> None:
    rows: list[Launch] = []
    at = 0
    for _ in range(3):
        for name in (GEMM, AR, NORM, "tail_kernel"):
            rows.append((name, at, 1_000))
            at += 1_000 + gap
    run = analyse(Run(RunInfo(), Trace(kernels=kernels([rows] * 3), timings=timings([[at - 90] * 4] * 4)), Path()))
    chain = pd.DataFrame({"rank": 0, "graph": 3, "source": range(11), "target": range(1, 12), "programmatic": True})
    sites = [Site("x", "", -1, (4 * k + 1, 4 * k + 2, 4 * k + 3), 4) for k in range(3)]
    found = Target(run.attribution, build(run.forward, table("edges", chain)), "x", "", sites, run.untraced, None)
    assert len(found.schedule.programmatic) == 11 and found.early_gaps.sum() == 3 * 3 * 2 * EARLY_NS
    made = of_target(found, Fused(speedup=1.0, launches=launches))
    assert made.saving_ns == pytest.approx(0, abs=1e-6)


@given(st.floats(0, 1), speedups, speedups)
def test_amdahl_is_monotone_bounded_and_zero_at_one(share: float, one: float, other: float) -> None:
    slow, fast = (amdahl.gain(share, s) for s in sorted((one, other)))
    assert slow <= fast <= share and amdahl.gain(share, 1.0) == 0


def test_doubling_the_replays_narrows_the_interval() -> None:
    def width(replays: int) -> float:
        jitter = np.random.default_rng(7).normal(0, 300, (replays, 2))
        made = [
            [(GEMM, 0, 10_000), (AR, 10_100, 4_000 + int(a)), (NORM, 15_500, 4_000 + int(b))] for a, b in jitter
        ]  # fmt: skip
        run = analyse(Run(RunInfo(), Trace(kernels=kernels(made)), Path()))
        found = target(run.attribution, build(run.forward), "ar_norm", "")
        low, high = of_target(found, Fused(time_ns=4_000, source="candidate")).interval_ns
        return high - low

    widths = [width(n) for n in (8, 32, 128)]
    assert widths == sorted(widths, reverse=True) and widths[0] > widths[-1]


def test_a_run_without_a_graph_is_bounded_and_cautioned() -> None:
    # Eager: the host is away for 200 us inside the only site, and tracing doubled the step.
    rows: list[Launch] = [(GEMM, 0, 1_000), (GEMM, 1_100, 1_000), (AR, 2_200, 1_000), (NORM, 203_200, 1_000)]
    eager = kernels([rows], nodes=False).assign(replay=-1)
    times: pd.DataFrame = timings([[100_000, 100_100, 99_900, 100_000]] * 4, source="host latency")
    run = analyse(Run(RunInfo(), Trace(kernels=eager, timings=times), Path()))
    found = target(run.attribution, run.schedule(), "ar_norm", "", run.untraced)
    made = of_target(found, Fused(time_ns=1_000))
    # The launches take 2 us of 204: the ceiling is no more than their part of the step.
    assert made.ceiling_ns == pytest.approx(100_000 * 2_000 / 204_200)
    assert made.saving_ns <= made.ceiling_ns
    assert "none is counted as saved" in made.verdict.sentence
    assert "2.04 times as long" in made.verdict.sentence

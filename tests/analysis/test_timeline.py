"""Timelines and gaps of literal forwards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from literal_traces import AR, FUSED_RUN, GEMM, NORM, SPLIT, Launch

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.compare import compare
from fusionscope.analysis.timeline import gaps, timeline
from fusionscope.analysis.waterfall import waterfall
from fusionscope.profiler.errors import FusionScopeError

Made = Callable[..., Analysed]


def test_a_timeline_starts_at_nought_and_names_the_boundary_of_each_launch(made: Made) -> None:
    shown = timeline(made([SPLIT, SPLIT]).attribution, 1)
    assert shown.start.tolist() == [0, 10_100, 12_200, 15_300, 25_400, 27_500]
    assert shown.duration.tolist() == [10_000, 2_000, 3_000] * 2
    assert shown.boundaries == ["", "ar_norm", "ar_norm"] * 2
    assert shown.names == [GEMM, AR, NORM] * 2
    assert shown.lanes == ["stream 7"] * 6
    assert shown.span == 30_500


def test_the_window_of_a_site_is_its_first_start_to_its_last_end(made: Made) -> None:
    run = made([SPLIT])
    second = run.attribution.sites["ar_norm"][1]
    assert timeline(run.attribution).window(second) == (25_400, 30_500)


def test_the_median_execution_is_shown_and_another_must_exist(made: Made) -> None:
    slow: list[Launch] = [*SPLIT[:-1], (NORM, 27_500, 9_000)]
    middle: list[Launch] = [*SPLIT[:-1], (NORM, 27_500, 4_000)]
    run = made([slow, SPLIT, middle])
    assert timeline(run.attribution).span == 31_500
    with pytest.raises(FusionScopeError, match="executions 0 to 2, not 3"):
        timeline(run.attribution, 3)


def test_gaps_add_up_to_span_minus_busy_time(made: Made) -> None:
    run = made([SPLIT])
    found = gaps(timeline(run.attribution))
    assert [(g.start_ns, g.length_ns, g.after, g.before) for g in found][:2] == [
        (10_000, 100, 0, 1),
        (12_100, 100, 1, 2),
    ]
    assert sum(g.length_ns for g in found) == int(run.forward.span[0] - run.forward.busy_time[0]) == 500


def test_a_launch_on_another_stream_covers_a_gap(made: Made) -> None:
    run = made([[(GEMM, 0, 10_000, 7), ("long", 1_000, 12_000, 8), (NORM, 14_000, 1_000, 7)]])
    (only,) = gaps(timeline(run.attribution))
    names = timeline(run.attribution).names
    assert (only.start_ns, only.length_ns, names[only.after], names[only.before]) == (13_000, 1_000, "long", NORM)
    assert timeline(run.attribution).lanes == ["stream 7", "stream 8", "stream 7"]


def test_a_wider_boundary_gives_the_colour_and_both_are_told(made: Made) -> None:
    launches: list[Launch] = [("finalizeMoeRoutingKernel", 0, 1_000), (AR, 1_100, 2_000), (NORM, 3_200, 3_000)]
    shown = timeline(made([launches]).attribution)
    assert shown.boundaries == ["moe_finalize"] * 3
    assert [[s.boundary for s in held] for held in shown.sites][1] == ["ar_norm", "moe_finalize"]


def test_the_steps_of_a_waterfall_add_up_to_the_difference_of_the_spans(made: Made) -> None:
    base, candidate = made([SPLIT] * 3), made([FUSED_RUN] * 3)
    steps = waterfall(compare(base, candidate))
    by_kind = {s.name: (s.difference_ns, s.launches) for s in steps}
    assert by_kind["ar_norm: launches that went"] == (-10_000, -4)
    assert by_kind["ar_norm: launches that came"] == (8_000, 2)
    assert by_kind["elsewhere: untouched (controls)"] == (0, 0)
    assert by_kind["gaps between launches, less overlap"] == (-200, 0)
    difference = float(np.median(candidate.forward.span) - np.median(base.forward.span))
    assert sum(s.difference_ns for s in steps) == difference == -2_200

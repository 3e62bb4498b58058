"""Figures hold the numbers that they are made of, and names as data."""

from __future__ import annotations

import numpy as np
import pytest

from fusionscope.analysis.tables import report
from fusionscope.analysis.timeline import timeline
from fusionscope.analysis.waterfall import waterfall
from fusionscope.dashboard.figures import base, boundaries, estimates
from fusionscope.dashboard.figures import timeline as drawn
from fusionscope.dashboard.figures import waterfall as falls
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.pages import estimate
from fusionscope.dashboard.urls import Query


def test_thousands_of_launches_are_a_few_traces(library: Library) -> None:
    run = library.analysed("example")
    made = drawn.timeline(timeline(run.attribution))
    assert sum(len(trace.x) for trace in made.data) == run.forward.launches == 1629
    assert [trace.name for trace in made.data] == [
        drawn.ELSEWHERE, "mhc_post", "mhc_post_pre", "moe_finalize",
    ]  # fmt: skip


def test_a_bar_begins_at_its_launch_and_is_as_long(library: Library) -> None:
    outside, norm = drawn.timeline(timeline(library.analysed("split").attribution)).data
    assert list(outside.base) == [0.0, 15.3]
    assert list(norm.x) == [2.0, 3.0, 2.0, 3.0]
    assert norm.hovertext[0].split("<br>") == [
        "<b>one_shot_all_reduce_kernel</b>",
        "2.00 us, from 10.10 us",
        "ar_norm 0 (residual, layer 0)",
    ]


def test_the_view_of_a_site_holds_it_with_its_neighbours(library: Library) -> None:
    shown = timeline(library.analysed("split").attribution)
    site = shown.attribution.sites["ar_norm"][1]
    low, high = drawn.timeline(shown, site).layout.xaxis.range
    assert low == pytest.approx(25.4 - 10) and high == pytest.approx(30.5 + 10)
    # 1,100 px for 25.1 us: 12 letters in the all-reduce's 2 us, and the GEMM's 9.9 us take its whole name.
    notes = {round(float(note.x), 2): note.text for note in drawn.timeline(shown, site).layout.annotations}
    assert notes == {20.35: "nvjet_sm90_gemm", 26.4: "one_shot_al…", 29.0: "fused_add_rmsnorm…"}
    assert drawn.timeline(shown).layout.annotations == ()


def test_aligned_at_a_site_both_sides_start_it_together(library: Library) -> None:
    sides = [timeline(library.analysed(name).attribution) for name in ("split", "fused")]
    sites = tuple(side.attribution.sites["ar_norm"][1] for side in sides)
    made = drawn.aligned(sides[0], sides[1], (sites[0], sites[1]))
    base_norm, candidate_norm = (trace for trace in made.data if trace.name == "ar_norm")
    assert [base_norm.base[2], candidate_norm.base[1]] == pytest.approx([25.4, 25.4])
    assert "moved by +1.1 us" in made.layout.xaxis.title.text
    assert [t.showlegend for t in made.data if t.name == "ar_norm"] == [True, False]


def test_boundary_bars_are_the_kernels_of_the_report(library: Library) -> None:
    run = library.analysed("example")
    told = report(run.attribution, run.forwards)["boundaries"]
    made = boundaries.bars(told)  # type: ignore[arg-type]
    (mhc,) = (row for row in told if row["boundary"] == "mhc_post")  # type: ignore[attr-defined]
    bars = [trace for trace in made.data if trace.y[0] == "mhc_post"]
    assert [bar.x[0] * 1000 for bar in bars] == pytest.approx([k["kernel_time_ns"] for k in mhc["kernels"]])
    assert "90 launches × median 3.49 us" in bars[0].hovertemplate
    assert any(f"{mhc['share']:.2%} of the span" in note.text for note in made.layout.annotations)


def test_the_last_bar_of_a_waterfall_is_the_sum(library: Library) -> None:
    made = falls.waterfall(waterfall(library.comparison("split", "fused"))).data[0]
    assert made.x[-1] == pytest.approx(sum(made.x[:-1])) == pytest.approx(-2.2)
    assert made.measure[-1] == "total"


def test_the_point_lies_on_amdahls_curve(library: Library) -> None:
    run = library.analysed("example")
    asked = estimate.Asked.of(Query.parse("?speedup=3"), "mhc_post")
    found = estimate.predict(library, run, asked).made
    curve, point, *rest = estimates.amdahl_curve(found, 0.005).data
    assert np.interp(point.x[0], curve.x, curve.y) == pytest.approx(point.y[0], rel=1e-3)
    assert point.y[0] == pytest.approx(100 * found.amdahl_gain)
    assert [trace.name.split()[0] for trace in rest] == ["schedule", "ceiling", "margin", "noise"]


def test_accuracy_draws_every_prediction(library: Library) -> None:
    found, _ = library.predictions()
    line, held = estimates.accuracy(found).data
    assert (line.name, held.name) == ("predicted = measured", "in the predicted interval")
    assert held.x[0] == pytest.approx(found[0].predicted.saving_ns / 1000)
    assert list(estimates.accuracy([]).data[0].x) == [-0.06, 1.06]


def test_names_of_a_trace_are_no_markup(library: Library) -> None:
    run = library.analysed("<script>")
    shown = drawn.timeline(timeline(run.attribution)).to_json()
    assert "<script" not in shown and "\\u003cscript" not in shown
    assert base.plain("<b>&") == "&lt;b&gt;&amp;"


def test_kinds_keep_their_colour_and_others_get_one() -> None:
    made = base.colours(["mhc_post", "mine", "yours"])
    assert made["mhc_post"] == base.KINDS["mhc_post"]
    assert len({made["mine"], made["yours"], *base.KINDS.values()}) == len(base.KINDS) + 2

"""Predicted against measured, and which runs belong together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from literal_store import TIMES
from literal_traces import FUSED_RUN, SPLIT, timings

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.candidate import fused_in
from fusionscope.analysis.compare import compare
from fusionscope.analysis.predictions import agreement, batches, knocked_out, knockouts, pairs, prediction
from fusionscope.analysis.target import TAKEN_NS
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table

Made = Callable[..., Analysed]
FASTER = [[time - 2_000 for time in block] for block in TIMES]


def test_the_fused_kernel_is_timed_in_the_run_that_has_it(made: Made) -> None:
    fused = fused_in(made([FUSED_RUN] * 2), "ar_norm")
    assert (fused.time_ns, fused.launches, fused.source) == (4_000, 1, "candidate")
    with pytest.raises(FusionScopeError, match="no site of mhc_post"):
        fused_in(made([FUSED_RUN]), "mhc_post")


def test_a_prediction_stands_beside_what_was_measured(made: Made) -> None:
    base, candidate = made([SPLIT] * 6, timings(TIMES)), made([FUSED_RUN] * 6, timings(FASTER))
    found = prediction(compare(base, candidate))
    assert found is not None
    assert (found.boundary, found.sites, found.measured_ns) == ("ar_norm", 2, 2_000)
    # Two sites of 5 us in two launches become 4 us; their inner gap of 100 ns goes too: 2 x 1.1 us, traced.
    assert found.predicted.traced_saving_ns == 2_200
    # 30.5 us traced against 29.5 untraced is 1000/6 ns a launch; half of that is less than what goes at the least.
    assert found.predicted.saving_ns == pytest.approx(2_200 - 2 * TAKEN_NS)
    assert found.held
    fit = agreement([found])
    assert fit is not None
    assert (fit.pairs, fit.held, fit.median_error) == (1, 1, fit.largest_error)
    assert agreement([]) is None
    assert fit.largest_error == abs(found.error_part)
    assert found.error_part == pytest.approx((2_200 - 2 * TAKEN_NS - 2_000) / 29_500)


def test_without_untraced_times_nothing_was_measured(made: Made) -> None:
    assert prediction(compare(made([SPLIT] * 3), made([FUSED_RUN] * 3))) is None


def info(name: str, **more: Any) -> RunInfo:
    known: dict[str, Any] = {"model": "m", "tp": 4, "batch": 4, "paths": {"mhc_post": "split"}, "name": name}
    return RunInfo(**known | more)


def test_pairs_are_of_one_experiment_and_add_a_fusion() -> None:
    split = info("split")
    fused = info("fused", paths={"mhc_post": "triton"})
    other = info("other", paths={"mhc_post": "triton"}, batch=64)
    both = info("both", paths={"mhc_post": "triton", "ar_norm": "triton"})
    imported = info("imported", paths={}, imported=True)
    found = [(a.name, b.name) for a, b in pairs([split, fused, other, both, imported])]
    assert found == [("split", "fused"), ("split", "both"), ("fused", "both")]


def test_the_base_captured_nearest_in_time_stands_for_its_like() -> None:
    bases = [info(f"base {day}", created=f"2026-01-0{day}T00:00:00+00:00") for day in (1, 4, 9)]
    fused = info("fused", paths={"mhc_post": "triton"}, created="2026-01-05T00:00:00+00:00")
    assert [(a.name, b.name) for a, b in pairs([*bases, fused])] == [("base 4", "fused")]


def test_batches_are_the_newest_runs_of_the_same_choice() -> None:
    runs = [
        info("one", batch=1, created="1"),
        info("one again", batch=1, created="2"),
        info("fused", batch=16, paths={"mhc_post": "triton"}),
        info("large", batch=64),
        info("model", batch=32, model="other"),
    ]
    mine = info("mine", paths={})
    assert [i.name for i in batches(runs, mine)] == ["one again", "mine", "large"]


def test_a_knock_out_of_the_same_program_is_the_measured_ceiling() -> None:
    blocks = [
        (block, arm, time)
        for block in range(6)
        for arm, time in (("base", 1_000), ("without mhc_post", 900))
        for _ in range(4)
    ]
    frame = pd.DataFrame(blocks, columns=["block", "arm", "duration_ns"]).assign(rank=0, process=1, source="untraced")
    settings = {"knockout": "ar_norm,mhc_post", "nodes mhc_post": "10", "disabled_node_ns": "2.5"}
    mine = info("mine")
    old = info("old", settings=settings, created="1")
    new = info("new", settings=settings, created="2")
    other = info("other", settings=settings, batch=64)
    assert [i.name for i in knockouts([old, new, other, mine], mine, "mhc_post")] == ["new", "old"]
    assert knockouts([old], mine, "moe_finalize") == []
    found = knocked_out(Run(new, Trace(timings=table("timings", frame)), Path()), "mhc_post")
    assert (found.raw.value_ns, found.corrected_ns, found.nodes) == (100, 125, 10)
    with pytest.raises(FusionScopeError, match="holds no knock-out of ar_norm"):
        knocked_out(Run(new, Trace(), Path()), "ar_norm")

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from literal_traces import FUSED_RUN, GEMM, SPLIT, timings

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.estimate import NEIGHBOURS_NS, Estimate, Fused, estimate
from fusionscope.analysis.target import TRACER_PART
from fusionscope.profiler.errors import FusionScopeError


def predict(run: Analysed, fused: Fused, boundary: str = "ar_norm", subtype: str = "") -> Estimate:
    return estimate(run.attribution, run.schedule(), boundary, subtype, fused, run.untraced)


def test_a_fused_time_gives_the_fused_runs_saving(made: Callable[..., Analysed]) -> None:
    found = predict(made([SPLIT] * 4), Fused(time_ns=4_000, source="candidate"))
    assert found.saving_ns == 30_500 - 28_300 and found.basis == "traced"
    assert found.ceiling_ns == 30_500 - 20_100
    low, high = found.interval_ns
    # Two sites of 4 us, 3 % either way, what two sites do to their neighbours, and no spread over the replays.
    half = float(np.hypot(240, NEIGHBOURS_NS * np.sqrt(2)))
    assert (low, high) == pytest.approx((2_200 - half, 2_200 + half))


def test_a_speedup_applies_to_each_site_with_its_gap_and_amdahl_sees_no_gaps(made: Callable[..., Analysed]) -> None:
    found = predict(made([SPLIT] * 4), Fused(speedup=2.0))
    assert found.saving_ns == 2 * (5_100 - 2_550)
    assert found.amdahl_gain * found.traced_span_ns == pytest.approx(5_000)


def test_removed_launches_take_part_of_the_tracing_along(made: Callable[..., Analysed]) -> None:
    run = made([SPLIT] * 4, timings([[29_000, 29_100, 28_900, 29_000]] * 5))
    found = predict(run, Fused(time_ns=4_000, source="candidate"))
    per_launch = (30_500 - 29_000) / 6
    assert found.inflation_ns_per_launch == pytest.approx(per_launch)
    assert found.saving_ns == pytest.approx(2_200 - TRACER_PART * per_launch * 2)
    assert found.basis == "untraced" and found.span_ns == 29_000


def test_a_slower_fused_kernel_is_called_slower(made: Callable[..., Analysed]) -> None:
    run = made([SPLIT] * 4, timings([[30_000, 30_010, 29_990, 30_000]] * 5))
    assert predict(run, Fused(time_ns=9_000, source="candidate")).verdict.class_ == "slower"


def test_what_is_not_there_is_named(made: Callable[..., Analysed]) -> None:
    run = made([SPLIT])
    with pytest.raises(FusionScopeError, match="0 sites of mhc_post"):
        predict(run, Fused(speedup=2.0), "mhc_post")
    with pytest.raises(FusionScopeError, match=r"ar_norm:trailing .subtypes here: residual"):
        predict(run, Fused(speedup=2.0), "ar_norm", "trailing")
    with pytest.raises(FusionScopeError, match="choose ar_norm, moe_finalize"):
        predict(run, Fused(speedup=2.0), "rope")
    with pytest.raises(FusionScopeError, match="0 sites"):
        predict(made([[(GEMM, 0, 5)]]), Fused(speedup=2.0))


def test_a_run_that_is_already_fused_saves_nothing_at_the_same_time(made: Callable[..., Analysed]) -> None:
    assert predict(made([FUSED_RUN] * 3), Fused(time_ns=4_000, source="candidate")).saving_ns == 0


def test_a_step_that_tracing_stretched_is_told_of(made: Callable[..., Analysed]) -> None:
    for untraced, told in ((20_000, "1.52 times as long"), (29_000, "")):
        run = made([SPLIT] * 4, timings([[untraced, untraced + 10, untraced - 10, untraced]] * 5))
        sentence = predict(run, Fused(time_ns=4_000, source="candidate")).verdict.sentence
        assert ("times as long as the untraced" in sentence) == bool(told) and told in sentence

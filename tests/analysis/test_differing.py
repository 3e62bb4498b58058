from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from literal_traces import FUSED_RUN, SPLIT, timings

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.compare import compare
from fusionscope.analysis.differing import doubts, incomparable


@pytest.mark.parametrize(
    ("before", "after", "fields"),
    [
        ({"batch": 4}, {"batch": 16}, {"batch": ("4", "16")}),
        ({"batch": 4}, {}, {}),
        ({"machine": {"gpu": "A"}}, {"machine": {"gpu": "B"}}, {"gpu": ("A", "B")}),
        ({"labels": ["emulated ranks"]}, {}, {"label emulated ranks": ("yes", "no")}),
        ({"labels": ["built-in model"]}, {}, {}),
        ({"profiler": "nsys"}, {"profiler": "cupti"}, {}),
    ],
)
def test_other_work_or_another_machine_cannot_be_compared(
    made: Callable[..., Analysed], before: dict[str, Any], after: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert incomparable(made([SPLIT] * 2, **before), made([FUSED_RUN] * 2, **after)) == fields


@pytest.mark.parametrize(
    ("before", "after", "fields"),
    [
        ({"profiler": "nsys"}, {"profiler": "cupti"}, {"profiler": ("nsys", "cupti")}),
        ({"machine": {"sm_clock_mhz": "1980"}}, {"machine": {"sm_clock_mhz": "1410"}}, {"sm_clock_mhz"}),
        ({"machine": {"sm_clock_mhz": "1980"}}, {"machine": {"sm_clock_mhz": "1965"}}, {}),
        ({"machine": {"throttle_reasons": "0x0"}}, {"machine": {"throttle_reasons": "0x4"}}, {"throttle_reasons"}),
        ({"labels": ["incomplete"]}, {}, {"label incomplete"}),
    ],
)
def test_another_profiler_clock_or_lost_rank_makes_it_doubtful(
    made: Callable[..., Analysed], before: dict[str, Any], after: dict[str, Any], fields: Any
) -> None:
    assert set(doubts(made([SPLIT] * 2, **before), made([FUSED_RUN] * 2, **after))) == set(fields)


def test_what_is_not_comparable_has_no_measured_saving(made: Callable[..., Analysed]) -> None:
    times = timings([[30_000, 30_004, 29_996, 30_000]] * 6)
    sides = made([SPLIT] * 2, times, batch=4), made([FUSED_RUN] * 2, times, batch=16)
    found = compare(*sides)
    assert (found.measured, found.measured_saving_ns, found.mde_ns) == (None, None, None)
    assert found.fired is not None and found.fired.sites == 2

"""A summary whose times come from two arms that were measured in turn, in several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from literal_traces import FUSED_RUN, SPLIT

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.compare import compare
from fusionscope.analysis.measured_ab import with_ab
from fusionscope.analysis.noise import AGAIN, BASE, CANDIDATE
from fusionscope.analysis.summary import markdown
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table


def arms(saved: int, **info: Any) -> Run:
    """Three processes of six blocks: the base at 30 us, the candidate `saved` ns below, a few ns of noise."""
    rows = []
    for process in range(3):
        for block in range(6):
            for arm, step in ((BASE, 30_000), (AGAIN, 30_000), (CANDIDATE, 30_000 - saved)):
                noise = [(7 * process + 5 * block + 3 * k + len(arm)) % 11 - 5 for k in range(4)]
                rows += [{"rank": 0, "process": process, "block": block, "arm": arm, "duration_ns": step + d,
                          "source": "untraced"} for d in noise]  # fmt: skip
    settings = {"ab": "paths"} | info.pop("settings", {})
    return Run(
        RunInfo(id="arms", settings=settings, **info), Trace(timings=table("timings", pd.DataFrame(rows))), Path()
    )


def test_arms_measured_in_turn_decide(made: Callable[..., Analysed]) -> None:
    found = with_ab(compare(made([SPLIT] * 3), made([FUSED_RUN] * 3)), arms(2_000))
    assert found.measured is not None and found.measured.class_ == "worth_merging"
    assert found.measured_saving_ns == pytest.approx(2_000, abs=4) and found.step_ns == pytest.approx(30_000, abs=3)
    text = markdown(found)
    assert "2.00 us less per decode forward (-6.67 % of the replay), measurable" in text.splitlines()[0]
    assert "**Measured, untraced:** 30.00 -> 28.00 us, saving 2.00 us [95 % CI " in text
    assert "(worth merging on time alone). 3 processes x 6 ABBA blocks an arm." in text
    assert "noise floor (A/A) 0.0" in text and "processes of their own" not in text
    loss = markdown(with_ab(compare(made([SPLIT] * 3), made([FUSED_RUN] * 3)), arms(-500)))
    assert "0.50 us more per decode forward (+1.6" in loss and loss.splitlines()[0].endswith(", slower")


def test_arms_of_other_work_are_refused(made: Callable[..., Analysed]) -> None:
    found = compare(made([SPLIT] * 2, batch=4), made([FUSED_RUN] * 2, batch=4))
    with pytest.raises(FusionScopeError, match="batch 4 and 16"):
        with_ab(found, arms(2_000, batch=16))
    with pytest.raises(FusionScopeError, match="holds no two arms"):
        with_ab(found, arms(2_000, settings={"ab": ""}))

from __future__ import annotations

import pandas as pd
import pytest

from fusionscope.analysis.knockout import ceilings
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.trace import table

TIMES = {"base": 100_000, "without mhc_post": 90_000, "without moe_finalize": 80_000}


def measured(blocks: int) -> pd.DataFrame:
    rows = [
        (process, block, arm, ns + block)
        for process in (1, 2)
        for block in range(blocks)
        for arm, ns in [*TIMES.items(), *reversed(TIMES.items())]
    ]
    data = pd.DataFrame(rows, columns=["process", "block", "arm", "duration_ns"])
    return table("timings", data.assign(rank=0, source="untraced"))


def test_a_knock_out_is_raw_and_corrected() -> None:
    found = ceilings(measured(4), {"mhc_post": 10, "moe_finalize": 20}, 300.0)
    assert [(row.boundary, row.raw.value_ns, row.corrected_ns) for row in found] == [
        ("mhc_post", 10_000, 13_000),
        ("moe_finalize", 20_000, 26_000),
    ]
    assert found[0].raw.blocks == 8 and found[0].raw.processes == 2
    document = found[0].document()
    assert document["part"] == pytest.approx(13_000 / 100_001.5) and document["nodes"] == 10


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(FusionScopeError, match="mhc_post holds fewer than 4"):
        ceilings(measured(1), {"mhc_post": 10}, 300.0)

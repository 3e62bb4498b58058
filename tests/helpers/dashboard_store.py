"""A store with good, odd and broken runs for the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import literal_store as literal
import pandas as pd
from literal_traces import FUSED_RUN, SPLIT, kernels

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace, table

#: Names of runs and kernels as somebody hostile would choose them.
SCRIPT = "<script>document.title='taken'</script>"
FORMULA = "=HYPERLINK(1)"


def fill(folder: Path) -> Store:
    """The literal runs, one named like a script with such kernels, one like a formula, two ranks, one broken."""
    literal.fill(folder)
    store = Store(folder)
    named: dict[str, Any] = {"model": SCRIPT, "labels": ["cpu"], "machine": {"gpu": SCRIPT}, "tp": 2, "batch": 1}
    hostile = kernels([[(SCRIPT, 0, 10_000), *SPLIT[1:3], (FORMULA, 16_000, 9_000)]] * 3)
    store.save(RunInfo(name="<script>", **named), Trace(kernels=hostile))
    store.save(RunInfo(name=FORMULA, model=FORMULA), Trace(kernels=kernels([FUSED_RUN])))
    two = [kernels([SPLIT] * 3), kernels([SPLIT] * 3).assign(rank=1).astype({"rank": "int32"})]
    plain = [part.astype({c: "object" for c in ("name", "raw_name", "kind")}) for part in two]
    store.save(
        RunInfo(name="ranks", world_size=2), Trace(kernels=table("kernels", pd.concat(plain, ignore_index=True)))
    )
    broken = folder / "20260101-000000-bad000"
    broken.mkdir()
    (broken / "run.json").write_text("{", encoding="utf-8")
    return store

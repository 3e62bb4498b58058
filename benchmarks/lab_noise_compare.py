"""The comparison that `ab` makes of lines that lab_noise.py left."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fusionscope.analysis import ab
from fusionscope.profiler import measure
from fusionscope.profiler.trace import table


def compared(rows: list[dict[str, Any]], base: str = measure.BASE, candidate: str = measure.CANDIDATE) -> ab.Comparison:
    """The comparison that `ab` would make of these lines, each as a process of its own."""
    taken = []
    for process, row in enumerate(rows):
        for arm, values in row["blocks"].items():
            kind = arm.split()[0]
            if kind in (base, candidate):
                name = arm.replace(kind, measure.BASE if kind == base else measure.CANDIDATE, 1)
                taken += [(process, block, name, round(value)) for block, value in enumerate(values)]
    data = pd.DataFrame(taken, columns=["process", "block", "arm", "duration_ns"])
    return ab.compare(table("timings", data.assign(rank=0, source="untraced")))

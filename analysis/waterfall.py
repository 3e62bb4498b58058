"""Where the difference between two forwards comes from: steps that add up to the difference of the spans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.paired_rows import Row


@dataclass(frozen=True)
class Step:
    """One part of the difference, candidate minus base. `kind`: boundary, moved, control, rest, gaps."""

    name: str
    kind: str
    difference_ns: float
    #: Launches that came (positive) or went.
    launches: int = 0


def waterfall(found: Comparison) -> list[Step]:
    """Steps from the base's span to the candidate's; their sum is the difference of the median spans exactly."""
    steps = []
    for change, _ in found.claims:
        mine = [r for r in found.rows if r.where == change.name]
        steps += _step(f"{change.name}: launches that went", "boundary", [r for r in mine if not r.candidate.launches])
        steps += _step(f"{change.name}: launches that came", "boundary", [r for r in mine if not r.base.launches])
        both = [r for r in mine if r.base.launches and r.candidate.launches]
        steps += _step(f"{change.name}: launches on both sides", "boundary", both)
    elsewhere = [r for r in found.rows if not r.where]
    steps += _step("elsewhere: came, went, grew or shrank", "moved", [r for r in elsewhere if r.status != "untouched"])
    steps += _step("elsewhere: untouched (controls)", "control", [r for r in elsewhere if r.status == "untouched"])
    medians = {
        name: [float(np.median(getattr(side.forward, name))) for side in (found.base, found.candidate)]
        for name in ("kernel_time", "span")
    }
    kernel_time = medians["kernel_time"][1] - medians["kernel_time"][0]
    span = medians["span"][1] - medians["span"][0]
    steps.append(Step("what medians of sums leave over", "rest", kernel_time - sum(s.difference_ns for s in steps)))
    # span = kernel time + gaps - overlap, so this is what neither kernel's own time explains.
    steps.append(Step("gaps between launches, less overlap", "gaps", span - kernel_time))
    return steps


def _step(name: str, kind: str, rows: list[Row]) -> list[Step]:
    if not rows:
        return []
    launches = sum(r.candidate.launches - r.base.launches for r in rows)
    return [Step(name, kind, sum(r.difference_ns for r in rows), launches)]

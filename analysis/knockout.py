"""What a step gained when the nodes of a boundary were disabled: the measured ceiling of any fusion of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fusionscope.analysis import ab
from fusionscope.analysis.noise import BASE
from fusionscope.analysis.shifts import LEAST_BLOCKS, Shift, shift
from fusionscope.analysis.tables import number
from fusionscope.profiler.errors import FusionScopeError

WITHOUT = "without "


@dataclass(frozen=True)
class Ceiling:
    """A boundary knocked out; times in ns. Raw is a lower bound, since a disabled node still costs something."""

    boundary: str
    nodes: int
    raw: Shift
    corrected_ns: float
    step_ns: float

    def document(self) -> dict[str, object]:
        """One row of the JSON of `fusionscope knockout`."""
        return {
            "boundary": self.boundary,
            "nodes": self.nodes,
            "raw_ns": number(self.raw.value_ns),
            "raw_interval_ns": [number(end) for end in self.raw.interval_ns],
            "corrected_ns": number(self.corrected_ns),
            "part": self.corrected_ns / self.step_ns,
            "blocks": self.raw.blocks,
            "processes": self.raw.processes,
        }


def ceilings(timings: pd.DataFrame, nodes: Mapping[str, int], disabled_node_ns: float) -> list[Ceiling]:
    """A row for each boundary that was knocked out, from a table TIMINGS with the arms `base` and `without KIND`.

    `nodes` tells how many were disabled. Raises FusionScopeError with fewer than 4 blocks.
    """
    step = float(np.median(ab.block_values(timings, BASE)))
    found = []
    for boundary, count in nodes.items():
        raw = shift(ab.differences(timings, BASE, WITHOUT + boundary))
        if raw is None:
            raise FusionScopeError(
                f"The knock-out of {boundary} holds fewer than {LEAST_BLOCKS} whole blocks: give it more (--blocks)."
            )
        found.append(Ceiling(boundary, count, raw, raw.value_ns + count * disabled_node_ns, step))
    return found

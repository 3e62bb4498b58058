"""Copies and fills of a forward: nodes of its graph that are no launches of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionscope.analysis.analysed import Analysed


@dataclass(frozen=True)
class Copies:
    """Nodes of one kind in one forward ("memcpy" or "memset"), and the median over replays of their time, ns."""

    kind: str
    nodes: int
    time_ns: float


def copies(run: Analysed) -> list[Copies]:
    """The copies and fills that belong to the executions of the run's forward.

    In graph replays they are those of the same replay, else those that start between its first and last launch.
    """
    kernels, forward = run.run.trace.kernels, run.forward
    rows = kernels[(kernels["rank"] == forward.rank) & kernels["kind"].isin(["memcpy", "memset"])]
    if len(rows) == 0:
        return []
    found = []
    for kind in ("memcpy", "memset"):
        mine = rows[rows["kind"] == kind]
        counts, times = [], []
        for execution in forward.rows:
            first = kernels.loc[execution]
            if forward.graph_launches:
                ids = set(zip(first["process"], first["replay"], strict=True))
                keys = zip(mine["process"], mine["replay"], strict=True)
                inside = mine[np.array([key in ids for key in keys], dtype=bool)]
            else:
                inside = mine[mine["start_ns"].between(first["start_ns"].min(), first["start_ns"].max())]
            counts.append(len(inside))
            times.append(int(inside["duration_ns"].sum()))
        if any(counts):
            found.append(Copies(kind, int(np.median(counts)), float(np.median(times))))
    return found

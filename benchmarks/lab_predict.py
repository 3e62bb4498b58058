"""What is predicted of a case before it is measured: by this project's estimate, and by the plain estimators.

Everything is a function of a stored `Seen`: the traced split step, the untraced times of the split step, and the fused
kernel's time by class of input. Nothing here knows what the candidate's step took.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.estimate import Fused, estimate
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table

Floats = NDArray[np.float64]

#: Bytes a ns of a large copy on an H200 (read and written bytes counted), measured.
BANDWIDTH = 4300.0
#: Part of the boundary's share that people who know that Amdahl is not enough take off; chosen on tuning cases.
DISCOUNT = 0.5


@dataclass
class Seen:
    """What is known of a case before its candidate is measured. Times in ns."""

    boundary: str
    #: [R, n] of the traced split step.
    start: NDArray[np.int64]
    duration: NDArray[np.int64]
    nodes: list[int]
    streams: list[int]
    names: list[str]
    edges: list[tuple[int, int, bool]]
    sites: list[tuple[int, int]]
    #: Median time of a site: of the candidate's traced graph, of the bench (fused, split), alone in a loop (same).
    candidate: float
    in_context: tuple[float, float] | None
    isolated: tuple[float, float] | None
    #: Bytes that the fused kernel must move at a site.
    moved: float
    #: Untraced times of the split step by block.
    untraced: list[list[int]]

    def save(self, path: Path) -> None:
        """Write the case without code (no pickle)."""
        rest = {k: v for k, v in self.__dict__.items() if k not in ("start", "duration")}
        np.savez_compressed(path, start=self.start, duration=self.duration, rest=np.array(json.dumps(rest)))

    @classmethod
    def load(cls, path: Path) -> Seen:
        """Read what `save` wrote."""
        with np.load(path) as data:
            rest = json.loads(str(data["rest"]))
            rest["edges"] = [(int(a), int(b), bool(p)) for a, b, p in rest["edges"]]
            rest["sites"] = [(int(a), int(b)) for a, b in rest["sites"]]
            return cls(start=data["start"], duration=data["duration"], **rest)


def analysed(seen: Seen) -> Analysed:
    """The split step as every analysis command sees a run."""
    replays, n = seen.start.shape
    order = np.tile(np.arange(n), replays)
    kernels = table(
        "kernels",
        pd.DataFrame(
            {
                "rank": 0,
                "process": 1,
                "device": 0,
                "stream": np.array(seen.streams)[order],
                "kind": "kernel",
                "name": np.array(seen.names, dtype=object)[order],
                "raw_name": np.array(seen.names, dtype=object)[order],
                "start_ns": seen.start.ravel(),
                "duration_ns": seen.duration.ravel(),
                "correlation": np.repeat(np.arange(replays), n),
                "graph": 1,
                "node": np.array(seen.nodes)[order],
                "replay": np.repeat(np.arange(replays), n),
            }
        ),
    )
    rows = [(k, node) for k, (first, last) in enumerate(seen.sites) for node in range(first, last)]
    sites = table(
        "sites",
        {
            "rank": [0] * len(rows),
            "graph": [1] * len(rows),
            "boundary": [seen.boundary] * len(rows),
            "site": [k for k, _ in rows],
            "layer": [k for k, _ in rows],
            "node": [node for _, node in rows],
            "path": ["split"] * len(rows),
        },
    )
    edges = table(
        "edges",
        pd.DataFrame(seen.edges, columns=["source", "target", "programmatic"]).assign(rank=0, graph=1),
    )
    timed = [(b, t) for b, block in enumerate(seen.untraced) for t in block]
    timings = table(
        "timings",
        pd.DataFrame(timed, columns=["block", "duration_ns"]).assign(rank=0, process=1, arm="", source="untraced"),
    )
    trace = Trace(kernels=kernels, sites=sites, edges=edges, timings=timings)
    return analyse(Run(RunInfo(), trace, Path()))


def predictions(seen: Seen) -> dict[str, Any]:
    """The saving in ns by class of input, with interval, and by each plain estimator given the same input."""
    found = analysed(seen)
    step = float(np.median([t for block in seen.untraced for t in block]))
    given: dict[str, tuple[float, float]] = {}  # class -> (fused, split) time of a site as that class sees them
    place = _site_time(found, seen.boundary)
    given["candidate"] = (seen.candidate, place)
    if seen.in_context is not None:
        given["in-context"] = seen.in_context
    if seen.isolated is not None:
        given["isolated"] = seen.isolated
    document: dict[str, Any] = {"step_ns": step, "site_split_ns": place, "sites": len(seen.sites), "by": {}}
    for source, (fused, split) in given.items():
        made = estimate(
            found.attribution, found.schedule(), seen.boundary, "", Fused(time_ns=fused, source=source), found.untraced
        )
        document["by"][source] = {
            "fused_ns": fused,
            "split_ns": split,
            "ours": {"ns": made.saving_ns, "interval_ns": list(made.interval_ns), "class": made.verdict.class_},
            "plain": plain(found, seen, step, fused, split),
        }
        document.setdefault("traced_span_ns", made.traced_span_ns)
        document.setdefault("ceiling_ns", made.ceiling_ns)
    return document


def _site_time(found: Analysed, boundary: str) -> float:
    sites = found.attribution.sites[boundary]
    return float(np.median([found.forward.duration[:, list(s.columns)].sum(axis=1) for s in sites]))


def plain(found: Analysed, seen: Seen, step: float, fused: float, split: float) -> dict[str, float]:
    """What everybody else computes, ns; all of them know the same two times of a site."""
    forward = found.forward
    columns = found.attribution.columns(seen.boundary)
    time = float(np.median(forward.duration[:, columns].sum(axis=1)))
    kernels, span = float(np.median(forward.kernel_time)), float(np.median(forward.span))
    less = 1 - fused / split
    sites = len(seen.sites)
    floor = seen.moved / BANDWIDTH
    return {
        "amdahl_kernel_time": step * time / kernels * less,
        "amdahl_span": step * time / span * less,
        "share_discounted": step * time / span * DISCOUNT,
        "isolated_difference": sites * (split - fused),
        "roofline": sites * (_site_time(found, seen.boundary) - floor),
    }

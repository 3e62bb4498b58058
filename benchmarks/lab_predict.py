"""What is predicted of a case before it is measured: by this project's estimate, and by the plain estimators.

Everything is a function of a stored `Seen`: the traced split step, the untraced times of the split step, and the fused
kernel's time by class of input. Nothing here knows what the candidate's step took.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.baselines import baselines
from fusionscope.analysis.beside import with_step
from fusionscope.analysis.estimate import Fused, of_target
from fusionscope.analysis.target import target
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table

#: Bytes a ns of a large copy on an H200 (read and written bytes counted), measured.
BANDWIDTH = 4300.0


ARRAYS = ("start", "duration", "fused_start", "fused_duration")
#: The input class of a candidate whose whole traced step is known, not its fused time alone.
WHOLE = "candidate run"


@dataclass
class Seen:
    """What is known of a case before its candidate is measured. Times in ns."""

    boundary: str
    #: [R, n] of the traced split step, the replays of one capture after the other; starts after the first of a replay.
    start: NDArray[np.int64]
    duration: NDArray[np.int64]
    nodes: list[int]
    streams: list[int]
    names: list[str]
    edges: list[tuple[int, int, bool]]
    sites: list[tuple[int, int]]
    #: Time of a site: in the candidate's traced graph, of the bench (fused, split), alone in a loop (same).
    candidate: float
    in_context: tuple[float, float] | None
    isolated: tuple[float, float] | None
    #: Bytes that the fused kernel must move at a site.
    moved: float
    #: Untraced times of the split step by block.
    untraced: list[list[int]]
    #: Median traced span of each capture of the split step and of the candidate.
    spans: list[float] = field(default_factory=list)
    fused_spans: list[float] = field(default_factory=list)
    #: The candidate's traced step, as the split one; no prediction reads it beyond what stands above.
    fused_start: NDArray[np.int64] | None = None
    fused_duration: NDArray[np.int64] | None = None
    fused_nodes: list[int] = field(default_factory=list)
    fused_sites: list[tuple[int, int]] = field(default_factory=list)
    #: Whether a fused site begins before the end of what stands before it; None where that was not recorded.
    fused_early: bool | None = None

    def save(self, path: Path) -> None:
        """Write the case without code (no pickle)."""
        there = {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}
        rest = {k: v for k, v in self.__dict__.items() if k not in ARRAYS}
        small = {name: value.astype(np.int32) for name, value in there.items()}
        np.savez_compressed(path, rest=np.array(json.dumps(rest)), **small)

    @classmethod
    def load(cls, path: Path) -> Seen:
        """Read what `save` wrote."""
        with np.load(path) as data:
            rest = json.loads(str(data["rest"]))
            rest = {key: value for key, value in rest.items() if key in cls.__dataclass_fields__}
            rest["edges"] = [(int(a), int(b), bool(p)) for a, b, p in rest["edges"]]
            rest["sites"] = [(int(a), int(b)) for a, b in rest["sites"]]
            return cls(**{name: data[name].astype(np.int64) for name in ARRAYS if name in data}, **rest)


def analysed(seen: Seen) -> Analysed:
    """The split step as every analysis command sees a run."""
    replays, n = seen.start.shape
    order = np.tile(np.arange(n), replays)
    apart = 1_000_000_000 * (1 + np.arange(replays))
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
                # Replays one after the other, as starts may be counted from each replay's first.
                "start_ns": (seen.start - seen.start.min(axis=1)[:, None] + apart[:, None]).ravel(),
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
    goal = target(found.attribution, found.schedule(), seen.boundary, "", found.untraced)
    place = float(np.median(_site_times(found, seen.boundary)))
    inputs: dict[str, tuple[Fused, float]] = {}  # class -> the input, and the split site's time as that class sees it
    alone = Fused(time_ns=seen.candidate, source="candidate")
    inputs["candidate"] = alone, place
    if seen.spans:
        inputs[WHOLE] = with_step(goal, alone, seen.spans, seen.fused_spans, seen.fused_early), place
    if seen.in_context is not None:
        inputs["in-context"] = Fused(time_ns=seen.in_context[0], source="in-context"), seen.in_context[1]
    if seen.isolated is not None:
        fused, split = seen.isolated
        inputs["isolated"] = Fused(time_ns=fused, source="isolated"), split
        inputs["isolated-corrected"] = Fused(time_ns=fused, source="isolated", split_ns=split), split
    document: dict[str, Any] = {
        "step_ns": goal.step_ns,
        "traced_span_ns": goal.span_ns,
        "ceiling_ns": goal.ceiling_ns,
        "tracer_ns": goal.tracer_ns,
        "taken_ns": goal.taken_ns,
        "early_gaps_ns": goal.early_gaps_ns,
        "spans_ns": seen.spans,
        "fused_spans_ns": seen.fused_spans,
        "sites": len(seen.sites),
        "site_split_ns": place,
        "by": {},
    }
    for name, (fused_input, split) in inputs.items():
        made = of_target(goal, fused_input)
        assert fused_input.time_ns is not None
        speedup = split / fused_input.time_ns
        plain = baselines(goal, speedup, seen.moved / BANDWIDTH, split, fused_input.time_ns)
        document["by"][name] = {
            "fused_ns": fused_input.time_ns,
            "split_ns": split,
            "ns": made.saving_ns,
            "interval_ns": list(made.interval_ns),
            "class": made.verdict.class_,
            "plain": {k: v["saving_ns"] for k, v in plain.document(goal.step_ns).items()},
        }
        if name == WHOLE:
            apart = float(np.mean(seen.spans) - np.mean(seen.fused_spans))
            document["by"][name] |= {"beside_ns": fused_input.beside_ns, "error_ns": fused_input.beside_error_ns}
            document["by"][name]["plain"]["traced_difference"] = apart
    return document


def _site_times(found: Analysed, boundary: str) -> Any:
    sites = found.attribution.sites[boundary]
    return np.stack([found.forward.duration[:, list(s.columns)].sum(axis=1) for s in sites])

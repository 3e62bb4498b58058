"""From a trace to forwards: which launches are one decode step, and which steps are the same program.

A forward is one replay of a graph, or several joined where an engine's step range says so (piecewise graphs), or one
step range on a CPU; an eager trace without step ranges is one forward with no replays.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.analysis.intervals import union_ns
from fusionscope.profiler.errors import FusionScopeError, GraphModeTrace
from fusionscope.profiler.trace import Trace

#: The range that our own decode step opens; on a CPU it is the only thing that delimits a forward.
OWN_STEP = "fusionscope.forward"
# Ranges in which one engine step runs: vLLM, SGLang, our samples. A training loop's ProfilerStep holds many replays
# of the same graph, so it must not join them.
_ENGINE_STEP = re.compile(r"^(execute_(new_|context_|\d+_context_)|step\[|decode_step|gpu_model_runner: ?forward)")
_EAGER_STEP = re.compile(_ENGINE_STEP.pattern + r"|^ProfilerStep#")

#: In both MI300X samples over 99.7 % of the gaps are at most 1 ns.
ABUTTING = 0.99

GRAPH_MODE_HELP = (
    "The trace was recorded in graph mode, so it has no kernels to attribute: record it again with "
    "--cuda-graph-trace=node (this run can still give replay times through --timings)."
)

#: Where fewer graph launches than this have any row of GPU work, the recording lost most of them.
_FILLED = 0.5

#: Rows of one execution, and the order of them that all executions of its program share.
_Ordered = tuple[pd.DataFrame, NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Forward:
    """One kind of forward of one rank: R executions of the same n launches, columns in order of their start."""

    kind: str
    rank: int
    #: n rows: name, raw_name, stream, device, graph, node, replay (of the first execution; -1 eager).
    nodes: pd.DataFrame
    #: [R, n] ns on the trace's clock.
    start: NDArray[np.int64]
    #: [R, n] ns.
    duration: NDArray[np.int64]
    #: [R, n] row labels in the kernels table.
    rows: NDArray[np.int64]
    #: How often it was replayed; 0 for an eager trace without steps (R is 1 then).
    replays: int
    #: How many graph launches one forward joins (0: eager).
    graph_launches: int

    @property
    def launches(self) -> int:
        """Launches of one forward."""
        return int(self.start.shape[1])

    @property
    def kernel_time(self) -> NDArray[np.int64]:
        """[R] ns: sum of durations."""
        total: NDArray[np.int64] = self.duration.sum(axis=1)
        return total

    @property
    def span(self) -> NDArray[np.int64]:
        """[R] ns: first start to last end."""
        span: NDArray[np.int64] = (self.start + self.duration).max(axis=1) - self.start.min(axis=1)
        return span

    @property
    def abutting(self) -> bool:
        """Whether launches follow each other without a gap, as in HIP graphs: durations then contain the dispatch."""
        gaps = []
        for stream in self.nodes["stream"].unique():
            on = np.flatnonzero(self.nodes["stream"].to_numpy() == stream)
            gaps.append((self.start[:, on[1:]] - (self.start + self.duration)[:, on[:-1]]).ravel())
        gap = np.concatenate(gaps)
        return len(gap) > 0 and float(((gap >= 0) & (gap <= 1)).mean()) > ABUTTING

    @property
    def busy_time(self) -> NDArray[np.int64]:
        """[R] ns: union of the intervals."""
        return np.array([union_ns(s, d) for s, d in zip(self.start, self.duration, strict=True)], dtype=np.int64)


def forwards(trace: Trace, rank: int = 0, warmup_replays: int = 0) -> list[Forward]:
    """All kinds of forward of a rank, the one with the most kernel time first.

    The first `warmup_replays` replays after instantiation are left out. Raises GraphModeTrace where there are no
    kernels because whole graphs were recorded, FusionScopeError where the rank has none, or the recording lost those
    of most graph launches: a share of what is left would be a share of nothing known.
    """
    kernels = trace.kernels
    usable = kernels[kernels["kind"].isin(["kernel", "op"]) & ~kernels["untimed"]]
    known = sorted(int(r) for r in usable["rank"].unique())
    mine = usable[usable["rank"] == rank]
    if len(mine) == 0:
        if trace.graph_mode:
            raise GraphModeTrace(GRAPH_MODE_HELP)
        if not known:
            raise FusionScopeError(
                "The run has no timed kernels at all: record it again with the profiler's GPU activity (CUDA, HIP) on."
            )
        there = f"{'rank' if len(known) == 1 else 'ranks'} {', '.join(map(str, known))}"
        raise FusionScopeError(f"The run has no kernels of rank {rank}, it has {there}: choose one with --rank.")
    _check_complete(trace, rank)
    groups, replayed = _groups(trace, rank, mine, max(warmup_replays, 0))
    # Replays repeat a program thousands of times: each is told apart by what it holds, and named once.
    programs: dict[tuple[bytes, bytes], list[_Ordered]] = {}
    for group in groups:
        order, ids = _canonical(group)
        codes = group["name"].cat.codes.to_numpy()[order]
        programs.setdefault((codes.tobytes(), ids.tobytes()), []).append((group, order))
    found = [
        _stack(_kind(executions[0], np.frombuffer(ids, dtype=np.int64)), rank, executions, replayed)
        for (_, ids), executions in programs.items()
    ]
    return sorted(found, key=lambda f: (-int(f.kernel_time.sum()), f.kind))


def _check_complete(trace: Trace, rank: int) -> None:
    launched = int(((trace.launches["rank"] == rank) & trace.launches["is_graph"]).sum())
    rows = trace.kernels[(trace.kernels["rank"] == rank) & (trace.kernels["replay"] >= 0)]
    filled = len(rows[["process", "replay"]].drop_duplicates())
    if not trace.graph_mode and filled < _FILLED * launched:
        raise FusionScopeError(
            f"Of {launched} graph launches of rank {rank} only {filled} have kernels in the trace: the recording is "
            "incomplete, so no share of a forward can be told; record again with a larger buffer or a longer flush at "
            "the end."
        )


def choose(found: list[Forward], kind: str | None) -> Forward:
    """The forward that `--forward` names: a prefix of its kind, or its launches; default the first."""
    if kind is None:
        return found[0]
    hits = [f for f in found if f.kind.startswith(kind)] or [f for f in found if str(f.launches) == kind]
    if len(hits) != 1:
        listed = ", ".join(f"{f.kind} ({f.launches} launches, {f.replays} replays)" for f in found)
        raise FusionScopeError(f"--forward {kind} names {len(hits)} kinds of forward; there are: {listed}.")
    return hits[0]


def most_like(found: list[Forward], wanted: Forward) -> Forward:
    """The forward that shares most kernel names with `wanted`, which is of another run or rank."""
    if len(found) == 1:
        return found[0]
    names = wanted.nodes["name"].astype(str).value_counts()

    def shared(forward: Forward) -> int:
        have = forward.nodes["name"].astype(str).value_counts()
        return int(np.minimum(*names.align(have, fill_value=0)).sum()) * 2 - forward.launches

    return max(found, key=shared)


def _groups(trace: Trace, rank: int, mine: pd.DataFrame, warmup: int) -> tuple[list[pd.DataFrame], bool]:
    ranges = trace.ranges[trace.ranges["rank"] == rank]
    own = ranges[ranges["name"] == OWN_STEP].sort_values("start_ns")
    if len(own) and (mine["kind"] == "op").all():
        steps = _rows_in(mine, own, mine["start_ns"])
        return steps[warmup:] or steps, True
    in_graph = mine["replay"] >= 0
    if not in_graph.any():
        steps = _steps(trace, rank, mine, ranges, _EAGER_STEP)
        # One step alone marks nothing off: all launches of the trace are that step.
        return (steps, True) if len(steps) > 1 else ([mine], False)
    replays = [g for _, g in mine[in_graph].groupby(["process", "replay"], sort=True)]
    replays = [g for g in replays if int(g["replay"].iloc[0]) >= warmup] or replays
    return _join(trace, rank, mine, replays, ranges), True


def _rows_in(mine: pd.DataFrame, steps: pd.DataFrame, when: pd.Series) -> list[pd.DataFrame]:
    parts = []
    for step in steps.itertuples():
        inside = mine[(when >= step.start_ns) & (when < step.end_ns) & (mine["process"] == step.process)]
        if len(inside):
            parts.append(inside)
    return parts


def _host_time(trace: Trace, rank: int, rows: pd.DataFrame) -> pd.Series:
    """When the host launched each row (the device's start where the trace does not know)."""
    calls = trace.launches[trace.launches["rank"] == rank].drop_duplicates(["process", "correlation"])
    by_id = calls.set_index(["process", "correlation"])["start_ns"]
    keys = pd.MultiIndex.from_arrays([rows["process"], rows["correlation"]])
    at = pd.Series(by_id.reindex(keys).to_numpy(dtype="float64", na_value=np.nan), index=rows.index)
    known = at.notna()
    host = rows["start_ns"].copy()
    # Through positions, since float64 would lose the nanoseconds of large times.
    host[known] = by_id.reindex(keys[known.to_numpy()]).astype("int64").to_numpy()
    return host


def _steps(
    trace: Trace, rank: int, mine: pd.DataFrame, ranges: pd.DataFrame, pattern: re.Pattern[str]
) -> list[pd.DataFrame]:
    names = ranges["name"].astype(str)
    chosen = ranges[names.str.match(pattern)].sort_values("start_ns")
    # Several kinds of marker nest (an engine's step inside a profiler's): the outermost of each moment counts.
    outer: list[int] = []
    reach: int | None = None
    for place, (start, end) in enumerate(zip(chosen["start_ns"].tolist(), chosen["end_ns"].tolist(), strict=True)):
        if reach is None or start >= reach:
            outer.append(place)
            reach = end
    return _rows_in(mine, chosen.iloc[outer], _host_time(trace, rank, mine)) if outer else []


def _join(
    trace: Trace, rank: int, mine: pd.DataFrame, replays: list[pd.DataFrame], ranges: pd.DataFrame
) -> list[pd.DataFrame]:
    """Join the replays that lie in one engine step, with the eager launches between them."""
    steps = _steps(trace, rank, mine, ranges, _ENGINE_STEP)
    joined, taken = [], set()
    for step in steps:
        inside = sorted({(int(p), int(r)) for p, r in zip(step["process"], step["replay"], strict=True) if r >= 0})
        if len(inside) < 2:
            continue
        taken.update(inside)
        part = step["replay"] >= 0
        first = step.loc[part, "start_ns"].min()
        last = (step.loc[part, "start_ns"] + step.loc[part, "duration_ns"]).max()
        joined.append(step[(step["start_ns"] >= first) & (step["start_ns"] < last)])
    alone = [g for g in replays if (int(g["process"].iloc[0]), int(g["replay"].iloc[0])) not in taken]
    return joined + alone


def _canonical(group: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """An order of the group that every execution of the same program shares, and what tells its launches apart."""
    node, graph = group["node"].to_numpy(), group["graph"].to_numpy()
    if (node >= 0).all() and graph.min() == graph.max() and len(np.unique(node)) == len(node):
        order = np.argsort(node, kind="stable")
        return order, node[order]
    # Without node ids a launch is known by its place on its stream; streams come in order of their first launch.
    stream, start = group["stream"].to_numpy(), group["start_ns"].to_numpy()
    _, which = np.unique(stream, return_inverse=True)
    first = np.full(which.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, which, start)
    order = np.lexsort((start, stream, first[which]))
    on = stream[order]
    return order, np.cumsum(np.concatenate([[0], on[1:] != on[:-1]]), dtype=np.int64)


def _kind(execution: _Ordered, ids: NDArray[np.int64]) -> str:
    """The name of a program: a digest of its launches."""
    group, order = execution
    digest = hashlib.sha256()
    for name, ident in zip(group["name"].astype(str).to_numpy()[order], ids.tolist(), strict=True):
        digest.update(f"{ident}\t{name}\n".encode(errors="replace"))
    return digest.hexdigest()[:12]


def _stack(key: str, rank: int, executions: list[_Ordered], replayed: bool) -> Forward:
    first, order = executions[0]
    first = first.iloc[order]
    columns = np.argsort(first["start_ns"].to_numpy(), kind="stable")
    wanted = ["name", "raw_name", "stream", "device", "graph", "node", "replay"]
    return Forward(
        kind=key,
        rank=rank,
        nodes=first.iloc[columns][wanted].reset_index(drop=True),
        start=np.stack([e["start_ns"].to_numpy()[order[columns]] for e, order in executions]),
        duration=np.stack([e["duration_ns"].to_numpy()[order[columns]] for e, order in executions]),
        rows=np.stack([e.index.to_numpy()[order[columns]] for e, order in executions]),
        replays=len(executions) if replayed else 0,
        graph_launches=int(first.loc[first["replay"] >= 0, "replay"].nunique()),
    )

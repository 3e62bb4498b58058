"""Tracing in the process itself with CUPTI's activity records (cupti-python)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from fusionscope.profiler.capture.plan import CaptureError
from fusionscope.profiler.readers.copies import kind_of
from fusionscope.profiler.trace import Trace, table

_BUFFER_BYTES = 8 * 1024 * 1024
_COPY = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


def unavailable() -> str:
    """Why CUPTI cannot be used, or "" where it can."""
    try:
        importlib.import_module("cupti.cupti")
    except Exception as error:  # a missing libcupti or driver raises what the binding likes
        return f"cupti-python does not load ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    return ""


def require() -> None:
    """Raises CaptureError where cupti-python does not load."""
    if reason := unavailable():
        raise CaptureError(
            f"--profiler cupti cannot be used: {reason}. Install it with: pip install 'fusionscope[cuda]'."
        )


def trace_file(folder: Path, rank: int, name: str) -> Path:
    """Where a rank leaves one table of its trace."""
    return folder / f"rank{rank}.cupti.{name}.parquet"


@contextmanager
def recording(folder: Path, rank: int) -> Iterator[None]:
    """Record what runs inside; everything must have ended on the device before the block does."""
    require()
    cupti = importlib.import_module("cupti.cupti")
    kinds = cupti.ActivityKind
    wanted = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET, kinds.RUNTIME)
    rows: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []

    # The records are only valid inside the callback, so that what is needed is copied out there.
    def completed(activities: list[Any]) -> None:
        for activity in activities:
            if activity.kind == kinds.RUNTIME:
                calls.append(_call(activity))
            elif activity.kind in (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET):
                rows.append(_row(activity, _kind(activity.kind, kinds)))

    try:
        cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), completed)
        for kind in wanted:
            cupti.activity_enable(kind)
    except cupti.cuptiError as error:
        raise CaptureError(
            f"CUPTI refuses to record ({error}): end other profilers of this GPU, and check that cupti-python "
            "is not newer than the driver; or use --profiler torch."
        ) from error
    try:
        yield
        cupti.activity_flush_all(1)
    finally:
        for kind in wanted:
            cupti.activity_disable(kind)
    kernels, launches = tables(rows, calls, rank)
    kernels.to_parquet(trace_file(folder, rank, "kernels"), index=False)
    launches.to_parquet(trace_file(folder, rank, "launches"), index=False)


def _kind(kind: int, kinds: Any) -> str:
    return {int(kinds.MEMCPY): "memcpy", int(kinds.MEMSET): "memset"}.get(int(kind), "kernel")


def _row(activity: Any, kind: str) -> dict[str, Any]:
    if kind == "kernel":
        name = str(activity.name)
    elif kind == "memcpy":
        name = f"Memcpy {_COPY.get(int(activity.copy_kind), '')}".rstrip()
    else:
        name = "Memset"
    return {
        "kind": kind_of(name, kind),
        "raw_name": name,
        "device": int(activity.device_id),
        "stream": int(activity.stream_id),
        "start_ns": int(activity.start),
        "end_ns": int(activity.end),
        "correlation": int(activity.correlation_id),
        "graph_node": int(activity.graph_node_id),
    }


def _call(activity: Any) -> dict[str, Any]:
    return {
        "thread": int(activity.thread_id),
        "start_ns": int(activity.start),
        "end_ns": int(activity.end),
        "correlation": int(activity.correlation_id),
    }


def tables(rows: list[dict[str, Any]], calls: list[dict[str, Any]], rank: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `kernels` and `launches` from copied records; calls that launched nothing are left out."""
    from fusionscope.profiler.readers.demangle import demangle
    from fusionscope.profiler.readers.replays import number_replays

    data = pd.DataFrame(rows, columns=list(_EMPTY_ROW)).astype(_EMPTY_ROW)
    called = pd.DataFrame(calls, columns=list(_EMPTY_CALL)).astype(_EMPTY_CALL)
    in_graph = data["graph_node"] > 0
    called = called[called["correlation"].isin(set(data["correlation"]))].sort_values("start_ns", ignore_index=True)
    is_graph = called["correlation"].isin(set(data.loc[in_graph, "correlation"]))
    both = {"rank": rank, "process": os.getpid()}
    launches = table(
        "launches",
        pd.DataFrame(
            {
                **both,
                "thread": called["thread"],
                "name": is_graph.map({True: "cudaGraphLaunch", False: "cudaLaunchKernel"}),
                "start_ns": called["start_ns"],
                "end_ns": called["end_ns"],
                "correlation": called["correlation"],
                "is_graph": is_graph,
            }
        ),
    )
    names = {name: demangle(name) for name in data["raw_name"].unique()}
    kernels = table(
        "kernels",
        pd.DataFrame(
            {
                **both,
                "device": data["device"],
                "stream": data["stream"],
                "kind": data["kind"],
                "name": data["raw_name"].map(names),
                "raw_name": data["raw_name"],
                "start_ns": data["start_ns"],
                "duration_ns": data["end_ns"] - data["start_ns"],
                "correlation": data["correlation"],
                # graphNodeId: the graph in the high 32 bits, the node's ordinal in the low ones; 0 is eager.
                "graph": (data["graph_node"] // 2**32).where(in_graph, -1),
                "node": (data["graph_node"] % 2**32).where(in_graph, -1),
                "untimed": (data["start_ns"] == 0) & (data["end_ns"] == 0),
            }
        ),
    ).sort_values(["start_ns", "node"], kind="stable", ignore_index=True)
    kernels["replay"], _ = number_replays(kernels, launches)
    return kernels, launches


_EMPTY_ROW = {
    "kind": "str",
    "raw_name": "str",
    "device": "int64",
    "stream": "int64",
    "start_ns": "int64",
    "end_ns": "int64",
    "correlation": "int64",
    "graph_node": "int64",
}
_EMPTY_CALL = {"thread": "int64", "start_ns": "int64", "end_ns": "int64", "correlation": "int64"}


def read(folder: Path, rank: int) -> Trace:
    """The trace that `recording` left for one rank."""
    kernels, launches = (
        table(name, pd.read_parquet(trace_file(folder, rank, name))) for name in ("kernels", "launches")
    )
    return Trace(kernels=kernels, launches=launches, machine={"profiler": "CUPTI"})

"""Nsight Systems SQLite exports, node mode and graph mode, of any schema generation.

Columns are found by name: their order and number change between releases. Correlation ids repeat between processes.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.names import rank_in_name
from fusionscope.profiler.readers.ranks import FileRanks
from fusionscope.profiler.readers.replays import number_replays
from fusionscope.profiler.readers.sqlite_file import Database, opened
from fusionscope.profiler.trace import Trace, table

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_DEVICE_TABLES = {KERNEL: "kernel", "CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "memset"}
_ROW = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
# NVTX push/pop and start/end, then the same two of NVTX 1 extensions (ENUM_NSYS_EVENT_TYPE).
_RANGE_EVENTS = (59, 60, 70, 71)
_GRAPH_LAUNCH = r"c(?:u|uda)GraphLaunch"


def read(path: str | Path) -> Trace:
    """The tables of one export.

    Several processes in one file are several ranks, numbered by device and then process; a warning says which is which.
    A lone one has the rank that the file's name tells of, else 0.
    Raises UnreadableTrace where the file is no Nsight export, is damaged, or holds no GPU work.
    """
    path = Path(path)
    try:
        with opened(path) as export:
            return _read(export)
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise UnreadableTrace(
            f"{path} is a damaged SQLite file ({error}): export it again with `nsys export --type sqlite`."
        ) from error
    except (OverflowError, ValueError, TypeError) as error:
        raise UnreadableTrace(
            f"{path} has a value that no Nsight export holds ({error}): "
            "export it again with `nsys export --type sqlite`."
        ) from error


def _read(export: Database) -> Trace:
    if "StringIds" not in export.tables or not {KERNEL, GRAPH_TRACE, RUNTIME, "META_DATA_EXPORT"} & export.tables:
        found = ", ".join(sorted(export.tables)[:5]) or "none"
        raise UnreadableTrace(
            f"{export.path} is an SQLite file but no Nsight Systems export: it lacks StringIds and {KERNEL} "
            f"(its tables: {found}); make one with `nsys export --type sqlite`."
        )
    strings = export.select("StringIds", ("id", "value"))
    names: dict[int, str] = {int(i): str(v) for i, v in strings.itertuples(index=False) if v is not None}
    warnings: list[str] = []
    device, raw = _device_rows(export, names, warnings)
    graphs = export.select(GRAPH_TRACE, (*_ROW, "graphId"))
    graphs = _device_columns(graphs)
    calls = _runtime(export, names)
    ranks = FileRanks(
        pd.concat([device, graphs], ignore_index=True) if len(graphs) else device, rank_in_name(export.path)
    )
    if not ranks.units:
        processes = int(calls["process"].nunique()) if len(calls) else 0
        raise UnreadableTrace(
            f"{export.path} holds 0 kernels from {processes} processes: the GPU work ran in a process that Nsight did "
            "not follow or after the capture ended; record with --trace=cuda,nvtx --trace-fork-before-exec=true."
        )
    if len(ranks.units) > 1:
        warnings.append(ranks.sentence())
    launches = table("launches", calls.assign(rank=ranks.of_calls(calls, device)))
    launches = launches[launches["rank"] >= 0].sort_values(["rank", "start_ns"], kind="stable")
    kernels = table("kernels", device.assign(rank=ranks.of(device), name=raw, raw_name=raw))
    kernels["replay"], doubts = number_replays(kernels, launches)
    machine = _machine(export)
    if "gpu" not in machine:
        warnings.append("The file does not name its GPU.")
    in_graph = bool(((kernels["graph"] >= 0) & (kernels["kind"] == "kernel")).any())
    graph_mode = not in_graph and (len(graphs) > 0 or (_mode(export) == "Graph" and bool(launches["is_graph"].any())))
    return Trace(
        kernels=kernels.sort_values(["rank", "start_ns"], kind="stable").reset_index(drop=True),
        launches=launches.reset_index(drop=True),
        ranges=_ranges(export, names, ranks),
        timings=_replay_times(graphs, ranks, warnings),
        machine=machine,
        graph_mode=graph_mode,
        warnings=tuple(warnings if graph_mode else [*warnings, *doubts]),
    )


def _device_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns of KERNELS that all GPU tables of an export share."""
    whole = {c: rows[c].fillna(-1).astype("int64") for c in _ROW}
    duration = whole["end"] - whole["start"]
    return pd.DataFrame(
        {
            "start_ns": whole["start"],
            "duration_ns": duration.clip(lower=0),
            "device": whole["deviceId"],
            "stream": whole["streamId"],
            "correlation": whole["correlationId"],
            "process": _pid(whole["globalPid"]),
            "untimed": ((whole["start"] == 0) & (whole["end"] == 0)) | (duration < 0),
        }
    )


def _pid(global_id: pd.Series[int]) -> pd.Series[int]:
    # Bits 24 to 47; those above number the machine. Floor division is right for ids that read as negative, too.
    return global_id // 2**24 % 2**24


def _device_rows(export: Database, names: dict[int, str], warnings: list[str]) -> tuple[pd.DataFrame, pd.Series[str]]:
    parts, texts = [], []
    for name, kind in _DEVICE_TABLES.items():
        if name not in export.tables:
            continue
        optional = ("graphNodeId", "demangledName", "shortName", "mangledName", "copyKind")
        rows = export.select(name, _ROW, optional)
        part = _device_columns(rows).assign(kind=kind)
        # graphNodeId: the graph in the high 32 bits, the node's ordinal in the low ones; 0 and NULL are eager.
        node = rows["graphNodeId"].fillna(0).astype("int64")
        part["graph"] = (node // 2**32).where(node != 0, -1)
        part["node"] = (node % 2**32).where(node != 0, -1)
        parts.append(part)
        texts.append(_kernel_names(rows, names) if kind == "kernel" else _copy_names(rows, kind))
    if not parts:
        empty = _device_columns(pd.DataFrame(columns=list(_ROW), dtype="object"))
        return empty.assign(kind="", graph=-1, node=-1), pd.Series(dtype="object")
    device = pd.concat(parts, ignore_index=True)
    untimed = int(device["untimed"].sum())
    if untimed:
        warnings.append(f"{untimed} of {len(device)} GPU records have no time: Nsight did not collect it.")
    return device, pd.concat(texts, ignore_index=True)


def _kernel_names(rows: pd.DataFrame, names: dict[int, str]) -> pd.Series[str]:
    text = rows["demangledName"].map(names)
    for fallback in ("shortName", "mangledName"):
        text = text.fillna(rows[fallback].map(names))
    return text.fillna("").astype("object")


_COPY = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


def _copy_names(rows: pd.DataFrame, kind: str) -> pd.Series[str]:
    if kind == "memset":
        return pd.Series(["Memset"] * len(rows), dtype="object")
    return rows["copyKind"].map(lambda code: f"Memcpy {_COPY[code]}" if code in _COPY else "Memcpy").astype("object")


def _runtime(export: Database, names: dict[int, str]) -> pd.DataFrame:
    rows = export.select(RUNTIME, ("start", "end", "globalTid", "correlationId", "nameId"))
    rows = rows.dropna(subset=["start", "end", "globalTid"])
    rows = rows.assign(text=rows["nameId"].map(names).fillna("").astype(str))
    rows = rows[rows["text"].str.contains("Launch") & ~rows["text"].str.contains("HostFunc")].reset_index(drop=True)
    tid = rows["globalTid"].astype("int64")
    return pd.DataFrame(
        {
            "process": _pid(tid),
            "thread": tid % 2**24,
            "name": rows["text"].str.replace(r"_v\d+$", "", regex=True),
            "start_ns": rows["start"].astype("int64"),
            "end_ns": rows["end"].astype("int64"),
            "correlation": rows["correlationId"].fillna(-1).astype("int64"),
            "is_graph": rows["text"].str.contains(_GRAPH_LAUNCH, regex=True),
        }
    )


def _ranges(export: Database, names: dict[int, str], ranks: FileRanks) -> pd.DataFrame:
    rows = export.select("NVTX_EVENTS", ("start", "end", "globalTid"), ("eventType", "text", "textId"))
    kind = rows["eventType"]
    rows = rows[rows["end"].notna() & rows["start"].notna() & (kind.isin(_RANGE_EVENTS) | kind.isna())]
    rows = rows.dropna(subset=["globalTid"])
    tid = rows["globalTid"].astype("int64")
    found = pd.DataFrame(
        {
            "process": _pid(tid),
            "thread": tid % 2**24,
            "name": rows["text"].fillna(rows["textId"].map(names)).fillna("").astype(str),
            "start_ns": rows["start"].astype("int64"),
            "end_ns": rows["end"].astype("int64"),
        }
    )
    found = found.assign(rank=ranks.of_processes(found["process"]))
    found = found[found["rank"] >= 0].sort_values(["rank", "start_ns"], kind="stable")
    return table("ranges", found)


def _replay_times(graphs: pd.DataFrame, ranks: FileRanks, warnings: list[str]) -> pd.DataFrame:
    """One row per graph launch of a graph-mode export, in the order of their start."""
    if graphs.empty:
        return table("timings")
    if untimed := int(graphs["untimed"].sum()):
        warnings.append(f"{untimed} of {len(graphs)} graph replays have no time: Nsight did not collect it.")
    rows = graphs.assign(rank=ranks.of(graphs))[~graphs["untimed"]].sort_values(["rank", "start_ns"], kind="stable")
    columns = rows[["rank", "process", "duration_ns"]]
    return table("timings", columns.assign(source="graph-level trace"))


def _mode(export: Database) -> str:
    found = export.metadata("META_DATA_CAPTURE") if "META_DATA_CAPTURE" in export.tables else {}
    return next((value for name, value in found.items() if name.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE")), "")


def _machine(export: Database) -> dict[str, str]:
    machine = {}
    gpus = export.select("TARGET_INFO_GPU", (), ("name",))["name"].dropna()
    if names := ", ".join(dict.fromkeys(str(name) for name in gpus if name)):
        machine["gpu"] = names
    about = export.metadata("META_DATA_EXPORT") if "META_DATA_EXPORT" in export.tables else {}
    machine["profiler"] = f"Nsight Systems {about.get('EXPORT_PRODUCT_VERSION', '')}".strip()
    system = export.metadata("TARGET_INFO_SYSTEM_ENV") if "TARGET_INFO_SYSTEM_ENV" in export.tables else {}
    if driver := system.get("NvDriverVersion"):
        machine["driver"] = driver
    return machine

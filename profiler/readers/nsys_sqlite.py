"""Nsight Systems SQLite exports, node mode and graph mode, of any schema generation.

Columns are found by name: their order and number change between releases. Correlation ids repeat between processes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.names import rank_in_name
from fusionscope.profiler.readers.ranks import FileRanks
from fusionscope.profiler.readers.replays import number_replays
from fusionscope.profiler.readers.sqlite_file import EXPORT_AGAIN, Database, reading
from fusionscope.profiler.trace import Trace, table

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_DEVICE_TABLES = {KERNEL: "kernel", "CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "memset"}
_ROW = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_NAMES = ("demangledName", "shortName", "mangledName")
#: Stands for NULL where -1 can be a value.
_NULL = -(2**63)
# NVTX push/pop and start/end, then the same two of NVTX 1 extensions (ENUM_NSYS_EVENT_TYPE).
_RANGE_EVENTS = (59, 60, 70, 71)
_Numbers = dict[str, NDArray[np.int64]]
_GRAPH_LAUNCH = r"c(?:u|uda)GraphLaunch"


def read(path: str | Path) -> Trace:
    """The tables of one export.

    Several processes in one file are several ranks, numbered by device and then process; a warning says which is which.
    A lone one has the rank that the file's name tells of, else 0.
    Raises UnreadableTrace where the file is no Nsight export, is damaged, or holds no GPU work.
    """
    path = Path(path)
    with reading(path, "Nsight export", EXPORT_AGAIN) as export:
        return read_tables(export)


def read_tables(export: Database) -> Trace:
    """The tables of an export in whatever store. Raises as `read` does."""
    if "StringIds" not in export.tables or not {KERNEL, GRAPH_TRACE, RUNTIME, "META_DATA_EXPORT"} & export.tables:
        found = ", ".join(sorted(export.tables)[:5]) or "none"
        raise UnreadableTrace(
            f"{export.path} is an SQLite file but no Nsight Systems export: it lacks StringIds and {KERNEL} "
            f"(its tables: {found}); make one with `nsys export --type sqlite`."
        )
    strings = export.select("StringIds", ("id", "value"))
    names: dict[int, str] = {int(i): str(v) for i, v in strings.itertuples(index=False) if v is not None}
    warnings: list[str] = []
    device = _device_rows(export, names, warnings)
    graphs = _device_columns(export.numbers(GRAPH_TRACE, (*_ROW, "graphId")))
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
    kernels = table("kernels", device.assign(rank=ranks.of(device), raw_name=device["name"]))
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


def _device_columns(rows: _Numbers) -> pd.DataFrame:
    """The columns of KERNELS that all GPU tables of an export share."""
    start, end = rows["start"], rows["end"]
    duration = end - start
    return pd.DataFrame(
        {
            "start_ns": start,
            "duration_ns": duration.clip(min=0),
            "device": rows["deviceId"],
            "stream": rows["streamId"],
            "correlation": rows["correlationId"],
            "process": _pid(rows["globalPid"]),
            "untimed": ((start == 0) & (end == 0)) | (duration < 0),
        }
    )


def _pid(global_id: NDArray[np.int64]) -> NDArray[np.int64]:
    # Bits 24 to 47; those above number the machine. Floor division is right for ids that read as negative, too.
    return global_id // 2**24 % 2**24


def _device_rows(export: Database, names: dict[int, str], warnings: list[str]) -> pd.DataFrame:
    """All rows of work on a GPU, with `kind` and `name`."""
    parts = []
    #: Every distinct name and its code.
    texts: dict[str, int] = {}
    for name, kind in _DEVICE_TABLES.items():
        rows = export.numbers(name, _ROW, ("graphNodeId", _NAMES[0] if kind == "kernel" else "copyKind"))
        part = _device_columns(rows)
        # graphNodeId: the graph in the high 32 bits, the node's ordinal in the low ones; 0 and NULL are eager.
        node = rows["graphNodeId"]
        in_graph = ~np.isin(node, (0, -1))
        part["graph"] = np.where(in_graph, node // 2**32, -1)
        part["node"] = np.where(in_graph, node % 2**32, -1)
        part["kind"] = list(_DEVICE_TABLES.values()).index(kind)
        part["name"] = (
            _kernel_names(export, rows[_NAMES[0]], names, texts) if kind == "kernel" else _copy_names(rows, kind, texts)
        )
        parts.append(part)
    device = pd.concat(parts, ignore_index=True)
    for column, categories in (("kind", list(_DEVICE_TABLES.values())), ("name", list(texts))):
        device[column] = pd.Categorical.from_codes(device[column], categories=pd.Index(categories, dtype="object"))
    untimed = int(device["untimed"].sum())
    if untimed:
        warnings.append(f"{untimed} of {len(device)} GPU records have no time: Nsight did not collect it.")
    return device


def _kernel_names(
    export: Database, demangled: NDArray[np.int64], names: dict[int, str], texts: dict[str, int]
) -> NDArray[np.int64]:
    """The code of each kernel's name: demangled where it is there, else short, else mangled, else ""."""
    codes = np.full(len(demangled), -1, dtype=np.int64)
    for column in _NAMES:
        # The others are read where they are needed only: a column of millions of rows takes its time.
        missing = codes < 0
        if not missing.any():
            return codes
        found = demangled if column == _NAMES[0] else export.numbers(KERNEL, (), (column,))[column]
        which, ids = pd.factorize(found[missing])
        known = [texts.setdefault(names[i], len(texts)) if i in names else -1 for i in ids.tolist()]
        codes[missing] = np.array(known, dtype=np.int64)[which]
    codes[codes < 0] = texts.setdefault("", len(texts)) if (codes < 0).any() else 0
    return codes


_COPY = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


def _copy_names(rows: _Numbers, kind: str, texts: dict[str, int]) -> NDArray[np.int64]:
    which, codes = pd.factorize(rows["copyKind"])
    said = [f"Memcpy {_COPY[c]}" if c in _COPY else "Memcpy" for c in codes.tolist()]
    said = ["Memset"] * len(codes) if kind == "memset" else said
    return np.array([texts.setdefault(text, len(texts)) for text in said], dtype=np.int64)[which]


def _runtime(export: Database, names: dict[int, str]) -> pd.DataFrame:
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    rows = export.numbers(RUNTIME, columns, missing=_NULL)
    ids = [i for i, text in names.items() if "Launch" in text and "HostFunc" not in text]
    timed = (rows["start"] != _NULL) & (rows["end"] != _NULL) & (rows["globalTid"] != _NULL)
    chosen = timed & np.isin(rows["nameId"], ids)
    start, end, tid, correlation, name = (rows[column][chosen] for column in columns)
    text = pd.Series(name).map(names).astype("object")
    return pd.DataFrame(
        {
            "process": _pid(tid),
            "thread": tid % 2**24,
            "name": text.str.replace(r"_v\d+$", "", regex=True),
            "start_ns": start,
            "end_ns": end,
            "correlation": np.where(correlation == _NULL, -1, correlation),
            "is_graph": text.str.contains(_GRAPH_LAUNCH, regex=True).astype(bool),
        }
    )


def _ranges(export: Database, names: dict[int, str], ranks: FileRanks) -> pd.DataFrame:
    rows = export.select("NVTX_EVENTS", ("start", "end", "globalTid"), ("eventType", "text", "textId"))
    kind = rows["eventType"]
    rows = rows[rows["end"].notna() & rows["start"].notna() & (kind.isin(_RANGE_EVENTS) | kind.isna())]
    rows = rows.dropna(subset=["globalTid"])
    tid = rows["globalTid"].to_numpy(dtype=np.int64)
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

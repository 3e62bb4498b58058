"""The SQLite file of rocprof v1: tables OPS (or KERN), COPY, HIP and rocTX."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble, frame
from fusionscope.profiler.readers.rocprof_csv import ADVICE
from fusionscope.profiler.readers.sqlite_file import Database, reading
from fusionscope.profiler.trace import Trace

_IDS = ("pid", "tid", "Index", "__section", "__lane", "gpu-id", "queue-id", "Name", "KernelName", "Data")


def is_rocprof(tables: set[str]) -> bool:
    """Whether these tables are those of rocprof v1."""
    return bool({"OPS", "KERN"} & tables) and "StringIds" not in tables


def read(path: str | Path) -> Trace:
    """The tables of one results.db. Raises UnreadableTrace where it is damaged or a table lacks a column."""
    path = Path(path)
    with reading(path, "file of rocprof", ADVICE) as database:
        return assemble(_found(database))


def _found(database: Database) -> Found:
    # KERN has the same kernels as OPS, with their sizes and without the calls that launched them.
    kernels = _rows(database, "OPS") if "OPS" in database.tables else _rows(database, "KERN")
    copies = _rows(database, "COPY").assign(kind="memcpy")
    parts = [part[list(DEVICE)] for part in (kernels, copies) if len(part)]
    found = Found(database.path, pd.concat(parts) if parts else frame(DEVICE, []), advice=ADVICE)
    found.machine = {"profiler": "rocprof"}
    found.calls = _rows(database, "HIP")[list(CALLS)]
    found.ranges = _rows(database, "rocTX")[list(RANGES)]
    found.device = found.device.reset_index(drop=True)
    return found


def _rows(database: Database, table: str) -> pd.DataFrame:
    rows = database.select(table, ("BeginNs", "EndNs") if table in database.tables else (), _IDS)
    if not len(rows):
        return frame((*dict.fromkeys((*DEVICE, *CALLS)),), [])
    name = rows["KernelName"].fillna(rows["Name"]).fillna(rows["Data"]).fillna("")
    return pd.DataFrame(
        {
            "process": _whole(rows["pid"]),
            "thread": _whole(rows["tid"]),
            "device": _whole(rows["gpu-id"].fillna(rows["__section"])),
            "stream": _whole(rows["queue-id"].fillna(rows["__lane"])),
            "kind": "kernel",
            "name": name.astype(str).astype("object"),
            "start_ns": _whole(rows["BeginNs"]),
            "end_ns": _whole(rows["EndNs"]),
            "correlation": _whole(rows["Index"]) if table in ("OPS", "HIP") else -1,
        }
    )


def _whole(column: pd.Series) -> pd.Series:
    return column.fillna(-1).astype("int64")

"""RPD files (rocmProfileData, schema 2): every operation of rocpd_op, those of graphs included.

The file's own view of kernels joins them to the arguments of a launch, which a graph's operations do not have: of a
decode under graphs it shows nothing.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble, frame
from fusionscope.profiler.readers.sqlite_file import Database, opened
from fusionscope.profiler.trace import Trace

ADVICE = "record again with runTracer.sh or rpdTracerControl"
_RANGE = "UserMarker"


def is_rpd(tables: set[str]) -> bool:
    """Whether these tables are those of an RPD file."""
    return {"rocpd_op", "rocpd_api", "rocpd_string"} <= tables


def read(path: str | Path) -> Trace:
    """The tables of one .rpd. Raises UnreadableTrace where it is damaged or a table lacks a column."""
    path = Path(path)
    try:
        with opened(path, ADVICE) as database:
            return assemble(_found(database))
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise UnreadableTrace(f"{path} is a damaged SQLite file ({error}): copy it again, or {ADVICE}.") from error
    except (OverflowError, ValueError, TypeError) as error:
        raise UnreadableTrace(f"{path} has a value that no RPD file holds ({error}): {ADVICE}.") from error


def _found(database: Database) -> Found:
    strings = database.select("rocpd_string", ("id", "string"))
    texts = {key: str(text) for key, text in strings.itertuples(index=False) if text is not None}
    api = database.select("rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id"), ("args_id",))
    links = database.select("rocpd_api_ops", ("api_id", "op_id"))
    found = Found(database.path, frame(DEVICE, []), machine={"profiler": "RPD"}, advice=ADVICE)
    ops = database.select("rocpd_op", ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"))
    if len(ops):
        found.device = _device(ops, links, api, texts)
    name = api["apiName_id"].map(texts).fillna("").astype("object")
    host = pd.DataFrame(
        {
            "process": _whole(api["pid"]),
            "thread": _whole(api["tid"]),
            "name": name,
            "start_ns": _whole(api["start"]),
            "end_ns": _whole(api["end"]),
            "correlation": _whole(api["id"]),
        }
    )
    marks = name == _RANGE
    found.calls = host.loc[~marks, list(CALLS)]
    found.ranges = host[marks].assign(name=api.loc[marks, "args_id"].map(texts).fillna(""))[list(RANGES)]
    if unlinked := int((found.device["correlation"] < 0).sum()):
        found.warnings.append(
            f"{unlinked} of {len(found.device)} operations have no host call in rocpd_api_ops: their graph is unknown."
        )
    return found


def _device(ops: pd.DataFrame, links: pd.DataFrame, api: pd.DataFrame, texts: dict[object, str]) -> pd.DataFrame:
    """Launches are "KernelExecution" (eager) and "Task" (inside a graph); the host call's row id joins them."""
    call: pd.Series = ops["id"].map(dict(links[["op_id", "api_id"]].itertuples(index=False)))
    process: pd.Series = call.map(dict(api[["id", "pid"]].itertuples(index=False)))
    processes = api["pid"].dropna().unique()
    alone = int(processes[0]) if len(processes) == 1 else -1
    kind = ops["opType_id"].map(texts).fillna("").astype("object")
    described = ops["description_id"].map(texts).fillna("").astype("object")
    return pd.DataFrame(
        {
            "process": process.fillna(alone).astype("int64"),
            "device": _whole(ops["gpuId"]),
            "stream": _whole(ops["queueId"]),
            "kind": kind.map(lambda text: "memcpy" if "Copy" in text else "memset" if "Fill" in text else "kernel"),
            "name": described.where(described != "", kind),
            "start_ns": _whole(ops["start"]),
            "end_ns": _whole(ops["end"]),
            "correlation": call.fillna(-1).astype("int64"),
        }
    )


def _whole(column: pd.Series) -> pd.Series:
    return column.fillna(-1).astype("int64")

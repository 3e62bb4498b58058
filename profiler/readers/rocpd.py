"""rocprofv3's database (rocpd, schema 3): the base tables, never the views.

The views join every kernel to a string, an event, an agent, … and lose the rows where one of these is missing. Table
names carry the id of the writing process; a merged file has several sets of them.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble, frame
from fusionscope.profiler.readers.sqlite_file import Database, opened
from fusionscope.profiler.trace import Trace

_DISPATCH = "rocpd_kernel_dispatch"
ADVICE = "record again with `rocprofv3 --kernel-trace --hip-trace --output-format rocpd`"


def is_rocpd(tables: set[str]) -> bool:
    """Whether these tables are those of a rocpd database of schema 3."""
    return any(_suffix(table, _DISPATCH) is not None for table in tables)


def _suffix(table: str, base: str) -> str | None:
    """The part of a table's name that says which process wrote it; None for other tables."""
    match = re.fullmatch(rf"{base}((?:_[0-9a-fA-F]+)*)", table)
    return match.group(1) if match else None


def read(path: str | Path) -> Trace:
    """The tables of one .db. Raises UnreadableTrace where it is damaged or a table lacks a column."""
    path = Path(path)
    try:
        with opened(path, ADVICE) as database:
            return assemble(_found(database))
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise UnreadableTrace(f"{path} is a damaged SQLite file ({error}): copy it again, or {ADVICE}.") from error
    except (OverflowError, ValueError, TypeError) as error:
        raise UnreadableTrace(f"{path} has a value that no rocpd file holds ({error}): {ADVICE}.") from error


def _found(database: Database) -> Found:
    sets = sorted({s for table in database.tables if (s := _suffix(table, _DISPATCH)) is not None})
    parts = [_Set(database, suffix) for suffix in sets]
    found = Found(database.path, frame(DEVICE, []), machine={"profiler": "rocprofv3"}, advice=ADVICE)
    kernels = [rows for part in parts for rows in (part.kernels(), part.copies()) if len(rows)]
    if kernels:
        found.device = pd.concat(kernels, ignore_index=True)
    found.calls, found.ranges = _host(parts)
    if gpu := ", ".join(dict.fromkeys(name for part in parts for name in part.gpus())):
        found.machine["gpu"] = gpu
    found.warnings = [text for part in parts for text in part.warnings]
    return found


class _Set:
    """The tables of one writing process, with what its row ids stand for."""

    def __init__(self, database: Database, suffix: str) -> None:
        self._database = database
        self._suffix = suffix
        self.warnings: list[str] = []
        self.strings = self._map("rocpd_string", "string")
        self._processes = self._map("rocpd_info_process", "pid")
        self._threads = self._map("rocpd_info_thread", "tid")
        agents = self.select("rocpd_info_agent", ("id",), ("guid", "absolute_index", "type", "product_name", "name"))
        self._agents = agents
        self._devices = dict(zip(_keys(agents), agents["absolute_index"], strict=True))
        events = self.select("rocpd_event", ("id",), ("guid", "stack_id", "correlation_id", "category_id"))
        keys = _keys(events)
        self._stacks = dict(zip(keys, events["stack_id"], strict=True))
        self._categories = dict(zip(keys, events["category_id"], strict=True))

    def select(self, table: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> pd.DataFrame:
        return self._database.select(table + self._suffix, needed, optional)

    def _map(self, table: str, column: str) -> dict[tuple[object, object], object]:
        rows = self.select(table, ("id", column), ("guid",))
        return dict(zip(_keys(rows), rows[column], strict=True))

    def kernels(self) -> pd.DataFrame:
        needed = ("start", "end", "kernel_id")
        optional = ("id", "guid", "pid", "tid", "agent_id", "queue_id", "stream_id", "event_id", "extdata")
        graph = ("graph_exec_id", "graph_node_id")
        rows = self.select(_DISPATCH, needed, (*optional, *graph))
        symbols = self.select("rocpd_info_kernel_symbol", ("id",), ("guid", "kernel_name", "display_name"))
        keys = _keys(symbols)
        raw = dict(zip(keys, symbols["kernel_name"].fillna(symbols["display_name"]), strict=True))
        shown = dict(zip(keys, symbols["display_name"].fillna(symbols["kernel_name"]), strict=True))
        where = _keys(rows, "kernel_id")
        names = [str(raw.get(key) or f"kernel {key[1]}") for key in where]
        if unknown := sum(not raw.get(key) for key in where):
            self.warnings.append(f"{unknown} of {len(rows)} kernels have no symbol: they carry their number.")
        device = self._device_columns(rows).assign(kind="kernel", name=names)
        device["readable"] = [str(shown.get(key) or name) for key, name in zip(where, names, strict=True)]
        exec_id, node = (_whole(rows[column]) for column in graph)
        return device.assign(graph=exec_id.where(exec_id > 0, -1), node=node.where(exec_id > 0, -1))

    def copies(self) -> pd.DataFrame:
        optional = ("id", "guid", "pid", "tid", "name_id", "stream_id", "queue_id", "event_id")
        agents = ("dst_agent_id", "src_agent_id")
        rows = self.select("rocpd_memory_copy", ("start", "end"), (*optional, *agents))
        if not len(rows):
            return frame(DEVICE, [])
        gpus = set(self._gpu_keys())
        to, source = _keys(rows, "dst_agent_id"), _keys(rows, "src_agent_id")
        picked = [s if s in gpus else t for s, t in zip(source, to, strict=True)]
        device = self._device_columns(rows.assign(agent_id=[key[1] for key in picked]))
        names = [str(self.strings.get(key) or "Memcpy") for key in _keys(rows, "name_id")]
        return device.assign(kind="memcpy", name=names, readable=names, graph=-1, node=-1)

    def _device_columns(self, rows: pd.DataFrame) -> pd.DataFrame:
        stream = rows["stream_id"].where(rows["stream_id"].notna(), rows["queue_id"])
        return pd.DataFrame(
            {
                "process": self._process(rows),
                "device": _whole(
                    pd.Series([self._devices.get(k, k[1]) for k in _keys(rows, "agent_id")], dtype="object")
                ),
                "stream": _whole(stream),
                "start_ns": _whole(rows["start"]),
                "end_ns": _whole(rows["end"]),
                "correlation": self._correlation(rows),
            }
        )

    def _process(self, rows: pd.DataFrame) -> pd.Series:
        return _whole(pd.Series([self._processes.get(k, k[1]) for k in _keys(rows, "pid")], dtype="object"))

    def _correlation(self, rows: pd.DataFrame) -> pd.Series:
        """The id that a dispatch shares with the host call: the event's stack id."""
        return _whole(pd.Series([self._stacks.get(k) for k in _keys(rows, "event_id")], dtype="object"))

    def regions(self) -> pd.DataFrame:
        """Host calls and ranges with the category of each."""
        rows = self.select("rocpd_region", ("start", "end"), ("id", "guid", "pid", "tid", "name_id", "event_id"))
        threads = [self._threads.get(key, key[1]) for key in _keys(rows, "tid")]
        events = _keys(rows, "event_id")
        categories = [(guid, self._categories.get((guid, event))) for guid, event in events]
        return pd.DataFrame(
            {
                "process": self._process(rows),
                "thread": _whole(pd.Series(threads, dtype="object")),
                "name": [str(self.strings.get(key) or "") for key in _keys(rows, "name_id")],
                "start_ns": _whole(rows["start"]),
                "end_ns": _whole(rows["end"]),
                "correlation": self._correlation(rows),
                "category": [str(self.strings.get(key) or "") for key in categories],
            }
        )

    def _gpu_keys(self) -> list[tuple[Any, Any]]:
        return [key for key, kind in zip(_keys(self._agents), self._agents["type"], strict=True) if kind == "GPU"]

    def gpus(self) -> list[str]:
        rows = self._agents[self._agents["type"] == "GPU"]
        names = rows["product_name"].where(rows["product_name"].notna() & (rows["product_name"] != ""), rows["name"])
        return [str(name) for name in names.dropna() if name]


def _host(parts: list[_Set]) -> tuple[pd.DataFrame, pd.DataFrame]:
    regions = pd.concat([part.regions() for part in parts], ignore_index=True)
    marker = regions["category"].astype(str).str.contains("MARKER")
    return regions.loc[~marker, list(CALLS)], regions.loc[marker, list(RANGES)]


def _keys(rows: pd.DataFrame, column: str = "id") -> list[tuple[Any, Any]]:
    """Row ids repeat between the processes of a merged file: (guid, id) is one row."""
    return list(zip(rows["guid"], rows[column], strict=True))


def _whole(column: pd.Series) -> pd.Series:
    return column.fillna(-1).astype("int64").reset_index(drop=True)

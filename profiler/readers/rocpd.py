"""rocprofv3's database (rocpd, schema 3): the base tables, never the views.

The views join every kernel to a string, an event, an agent, … and lose the rows where one of these is missing. Table
names carry the id of the writing process; a merged file has several sets of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble, frame
from fusionscope.profiler.readers.sqlite_file import Database, reading
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
    with reading(path, "rocpd file", ADVICE) as database:
        return assemble(_found(database))


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


_GRAPH = ("graph_exec_id", "graph_node_id")
#: Row ids stand for what they refer to where that is missing. The id that a dispatch shares with the host call is its
#: event's stack id.
_DEVICE_SQL = {
    "process": "IFNULL(process.pid, k.pid)",
    "device": "IFNULL(agent.absolute_index, k.agent_id)",
    "stream": "IFNULL(k.stream_id, k.queue_id)",
    "start_ns": "k.start",
    "end_ns": 'k."end"',
    "correlation": "event.stack_id",
}
#: Tables that rows refer to, and what is wanted of each.
_REFERRED = {
    "process": ("rocpd_info_process", "pid"),
    "thread": ("rocpd_info_thread", "tid"),
    "agent": ("rocpd_info_agent", "absolute_index"),
    "event": ("rocpd_event", "stack_id", "category_id"),
    "symbol": ("rocpd_info_kernel_symbol",),
    "text": ("rocpd_string",),
}


class _Set:
    """The tables of one writing process."""

    def __init__(self, database: Database, suffix: str) -> None:
        self._database = database
        self._suffix = suffix
        self.warnings: list[str] = []
        self._strings = {place: str(text or "") for place, text in self._select("rocpd_string", ("string",))}
        self._agents = self._select("rocpd_info_agent", ("type", "product_name", "name"))

    def _select(self, table: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
        return self._database.connection.execute(f"SELECT * FROM {self._source(table, columns)}").fetchall()

    def _source(self, table: str, columns: tuple[str, ...]) -> str:
        """A table with these columns behind its row's `place`; what is absent is NULL, an absent table has no rows."""
        name = table + self._suffix
        there = name in self._database.tables
        present = self._database.columns(name) if there else set()
        picked = ", ".join(f'"{c}"' if c in present else f'NULL AS "{c}"' for c in columns)
        return (
            f'(SELECT rowid AS place, {picked} FROM "{name}")' if there else f"(SELECT NULL AS place, {picked} WHERE 0)"
        )

    def _rows(self, table: str, own: tuple[str, ...], wanted: dict[str, str], joins: dict[str, str]) -> pd.DataFrame:
        """Whole numbers of a table, `wanted` by name as SQL over `k` (its columns `own`) and the joined tables.

        `joins` says with which SQL each table of _REFERRED is referred to. Row ids repeat between the processes of a
        merged file, so the writer's guid must be the same. NULL is -1: every row stays, whatever it refers to.
        """
        name = table + self._suffix
        if name not in self._database.tables:
            return pd.DataFrame({column: pd.Series(dtype="int64") for column in wanted})
        if lacking := [c for c in ("start", "end") if c not in self._database.columns(name)]:
            raise UnreadableTrace(f"{self._database.path}: table {name} has no column {', '.join(lacking)}; {ADVICE}.")
        sql = f"FROM {self._source(table, ('guid', *own))} k"
        for alias, key in joins.items():
            other, *columns = _REFERRED[alias.rstrip("0123456789")]
            source = self._source(other, ("id", "guid", *columns))
            sql += f" LEFT JOIN {source} {alias} ON {alias}.id = {key}"
            sql += f" AND ({alias}.guid IS NULL OR k.guid IS NULL OR {alias}.guid = k.guid)"
        count = int(self._database.connection.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0])
        picked = ", ".join(f"IFNULL({text}, -1)" for text in wanted.values())
        found = self._database.fetch(f"SELECT {picked} {sql}", len(wanted), count)
        return pd.DataFrame(dict(zip(wanted, found, strict=True)))

    def kernels(self) -> pd.DataFrame:
        own = ("start", "end", "kernel_id", "pid", "agent_id", "queue_id", "stream_id", "event_id", *_GRAPH)
        wanted = {**_DEVICE_SQL, "kernel": "k.kernel_id", "symbol": "symbol.place"}
        wanted |= {"graph": f"k.{_GRAPH[0]}", "node": f"k.{_GRAPH[1]}"}
        joins = {"process": "k.pid", "agent": "k.agent_id", "event": "k.event_id", "symbol": "k.kernel_id"}
        rows = self._rows(_DISPATCH, own, wanted, joins)
        symbols = {
            place: (str(raw or shown or ""), str(shown or raw or ""))
            for place, raw, shown in self._select("rocpd_info_kernel_symbol", ("kernel_name", "display_name"))
        }
        # A kernel without a symbol carries its number; the others are named by their symbol.
        keys = rows["symbol"].where(rows["symbol"] >= 0, -2 - rows["kernel"])
        # As Python's integers, which have no least one.
        unnamed = {key: (f"kernel {-2 - key}",) * 2 for key in keys.unique().tolist() if not symbols.get(key, ("",))[0]}
        named = symbols | unnamed
        for column, turn in (("name", 0), ("readable", 1)):
            rows[column] = keys.map({key: named[key][turn] for key in keys.unique()}).astype("object")
        if count := int(keys.isin(list(unnamed)).sum()):
            self.warnings.append(f"{count} of {len(rows)} kernels have no symbol: they carry their number.")
        rows["node"] = rows["node"].where(rows["graph"] > 0, -1)
        rows["graph"] = rows["graph"].where(rows["graph"] > 0, -1)
        return rows.drop(columns=["kernel", "symbol"]).assign(kind="kernel")

    def copies(self) -> pd.DataFrame:
        own = ("start", "end", "pid", "name_id", "dst_agent_id", "src_agent_id", "queue_id", "stream_id", "event_id")
        gpu = "(SELECT type FROM {} WHERE place = agent2.place) = 'GPU'".format(
            self._source("rocpd_info_agent", ("type",))
        )
        device = f"CASE WHEN {gpu} THEN agent2.absolute_index ELSE IFNULL(agent1.absolute_index, k.dst_agent_id) END"
        wanted = {**_DEVICE_SQL, "device": device, "text": "text.place"}
        joins = {"process": "k.pid", "agent1": "k.dst_agent_id", "agent2": "k.src_agent_id", "event": "k.event_id"}
        rows = self._rows("rocpd_memory_copy", own, wanted, {**joins, "text": "k.name_id"})
        names = rows["text"].map(self._strings).astype("object").fillna("Memcpy")
        copies = rows.drop(columns="text").assign(kind="memcpy", name=names, readable=names)
        return copies.assign(graph=-1, node=-1)

    def regions(self) -> pd.DataFrame:
        """Host calls and ranges with the category of each."""
        own = ("start", "end", "pid", "tid", "name_id", "event_id")
        wanted = {column: _DEVICE_SQL[column] for column in ("process", "start_ns", "end_ns", "correlation")}
        wanted |= {"thread": "IFNULL(thread.tid, k.tid)", "text": "text1.place", "category": "text2.place"}
        joins = {"process": "k.pid", "thread": "k.tid", "event": "k.event_id", "text1": "k.name_id"}
        rows = self._rows("rocpd_region", own, wanted, {**joins, "text2": "event.category_id"})
        texts = {column: rows[column].map(self._strings).astype("object").fillna("") for column in ("text", "category")}
        return rows.assign(name=texts["text"], category=texts["category"]).drop(columns="text")

    def gpus(self) -> list[str]:
        return [str(product or name) for _, kind, product, name in self._agents if kind == "GPU" and (product or name)]


def _host(parts: list[_Set]) -> tuple[pd.DataFrame, pd.DataFrame]:
    regions = pd.concat([part.regions() for part in parts], ignore_index=True)
    marker = regions["category"].astype(str).str.contains("MARKER")
    return regions.loc[~marker, list(CALLS)], regions.loc[marker, list(RANGES)]

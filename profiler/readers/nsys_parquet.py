"""A folder of Parquet files from Nsight Systems (`nsys export --type parquetdir`): one file a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.parquet_file import read_table
from fusionscope.profiler.readers import nsys_sqlite
from fusionscope.profiler.readers.sqlite_file import Database
from fusionscope.profiler.trace import Trace

_ADVICE = "export the report again with `nsys export --type parquetdir`, or `--type sqlite`"
_STRINGS = "StringIds"
#: Columns that are ids of StringIds in SQLite; in Parquet they can be the texts themselves.
_NAMES = {
    nsys_sqlite.KERNEL: ("demangledName", "shortName", "mangledName"),
    nsys_sqlite.RUNTIME: ("nameId",),
    "NVTX_EVENTS": ("textId",),
}
#: Ids of such texts; real ones are not negative.
_FIRST = -(1 << 40)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder of such files."""
    return any(
        (path / f"{table}.parquet").is_file() for table in (nsys_sqlite.KERNEL, nsys_sqlite.GRAPH_TRACE, _STRINGS)
    )


def read(path: str | Path) -> Trace:
    """The tables of one folder. Raises UnreadableTrace where a file is damaged or a table lacks a column."""
    path = Path(path)
    try:
        return nsys_sqlite.read_tables(_Folder(path))
    except (pa.ArrowException, OSError) as error:
        # Arrow adds the whole schema on lines of its own.
        reason = str(error).partition("\n")[0]
        raise UnreadableTrace(f"{path} has a damaged Parquet file ({reason}): {_ADVICE}.") from error
    except (OverflowError, ValueError, TypeError) as error:
        raise UnreadableTrace(f"{path} has a value that no Nsight export holds ({error}): {_ADVICE}.") from error


class _Folder(Database):
    """The same questions that the SQLite file answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.advice = _ADVICE
        self._files = {file.stem: file for file in sorted(path.glob("*.parquet"))}
        self.tables = {*self._files, _STRINGS}
        self._ids: dict[str, int] = {}

    def columns(self, name: str) -> set[str]:
        return set(parquet.read_schema(self._files[name]).names)

    def select(self, name: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> pd.DataFrame:
        if name == _STRINGS:
            return self._strings()
        if name not in self._files:
            return pd.DataFrame(columns=[*needed, *optional], dtype="object")
        table = self._table(name, needed, optional)
        found = {c: self._as_ids(name, table, c).to_pylist() for c in table.column_names}
        absent = [None] * len(table)
        return pd.DataFrame({c: found.get(c, absent) for c in (*needed, *optional)}, dtype="object")

    def numbers(
        self, name: str, needed: tuple[str, ...], optional: tuple[str, ...] = (), missing: int = -1
    ) -> dict[str, NDArray[np.int64]]:
        if name not in self._files:
            return {column: np.empty(0, dtype=np.int64) for column in (*needed, *optional)}
        table = self._table(name, needed, optional)
        absent = np.full(len(table), missing, dtype=np.int64)
        found = {}
        for column in table.column_names:
            ids = self._as_ids(name, table, column)
            # Unsigned ids of processes and threads keep their bits.
            if pa.types.is_uint64(ids.type):
                values = ids.fill_null(missing % 2**64).to_numpy().view(np.int64)
            else:
                values = ids.cast(pa.int64()).fill_null(missing).to_numpy()
            found[column] = np.ascontiguousarray(values)
        return {column: found.get(column, absent) for column in (*needed, *optional)}

    def _table(self, name: str, needed: tuple[str, ...], optional: tuple[str, ...]) -> pa.Table:
        present = self.columns(name)
        self._columns(name, needed, optional)
        wanted = [column for column in (*needed, *optional) if column in present]
        table = read_table(self._files[name], wanted)
        # Without a column the number of rows would be lost.
        return table if wanted else read_table(self._files[name])

    def _as_ids(self, name: str, table: pa.Table, column: str) -> pa.ChunkedArray:
        values = table[column]
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        if column in _NAMES.get(name, ()) and is_text:
            ids = [None if text is None else self._id(text) for text in values.to_pylist()]
            return pa.chunked_array([pa.array(ids, type=pa.int64())])
        return values

    def _id(self, text: str) -> int:
        return self._ids.setdefault(text, _FIRST - len(self._ids))

    def _strings(self) -> pd.DataFrame:
        rows: list[tuple[object, object]] = []
        if _STRINGS in self._files:
            table = read_table(self._files[_STRINGS], ["id", "value"])
            rows += zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True)
        for name, columns in _NAMES.items():
            if name in self._files:
                table = self._table(name, (), columns)
                for column in set(columns) & set(table.column_names):
                    self._as_ids(name, table, column)
        rows += [(number, text) for text, number in self._ids.items()]
        return pd.DataFrame(rows, columns=["id", "value"], dtype="object")

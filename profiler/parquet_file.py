"""Parquet files of other people: a few bytes of one can stand for any number of equal rows."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet

#: Rows that any file may hold, and more for each of its bytes: no row of a trace takes less than half a bit.
_ROWS, _ROWS_A_BYTE = 1_000_000, 16


class Told(NamedTuple):
    """Rows of a file, and its bytes unpacked."""

    rows: int
    bytes: int


def told(path: Path) -> Told:
    """What a file says that it holds, without reading it. Raises as pyarrow does."""
    found = parquet.read_metadata(path)
    groups = [found.row_group(i) for i in range(found.num_row_groups)]
    # The two counts of rows are written apart: a damaged file can say either.
    rows = max(found.num_rows, sum(group.num_rows for group in groups))
    return Told(rows, sum(group.total_byte_size for group in groups))


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A file's table. Raises ArrowInvalid where it would unpack to more rows than its size can account for, else as
    pyarrow does."""
    rows, size = told(path).rows, path.stat().st_size
    if rows > _ROWS + _ROWS_A_BYTE * size:
        raise pa.ArrowInvalid(f"it tells of {rows} rows in {size} bytes")
    return parquet.read_table(path, columns=columns, partitioning=None)

"""Parquet files of other people: a few bytes of one can stand for any number of equal rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

#: Rows that any file may hold, and more for each of its bytes: no row of a trace takes less than half a bit.
_ROWS, _ROWS_A_BYTE = 1_000_000, 16


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A file's table. Raises ArrowInvalid where it would unpack to more rows than its size can account for, else as
    pyarrow does."""
    found = parquet.read_metadata(path)
    rows = max(found.num_rows, sum(found.row_group(i).num_rows for i in range(found.num_row_groups)))
    size = path.stat().st_size
    if rows > _ROWS + _ROWS_A_BYTE * size:
        raise pa.ArrowInvalid(f"it tells of {rows} rows in {size} bytes")
    return parquet.read_table(path, columns=columns, partitioning=None)

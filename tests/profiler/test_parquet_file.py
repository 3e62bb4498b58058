"""Parquet files that would unpack to more than their size can account for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from nsys_files import parquet_folder
from pyarrow import parquet

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.parquet_file import read_table, told
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.runinfo import BrokenRun, RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """Three million equal rows in less than 100 kB."""
    path = tmp_path / "bomb.parquet"
    parquet.write_table(pa.table({"id": np.zeros(3_000_000, dtype=np.int64)}), path)
    assert path.stat().st_size < 100_000
    return path


def test_equal_rows_without_end_are_refused_wherever_tables_are_read(tmp_path: Path, bomb: Path) -> None:
    with pytest.raises(pa.ArrowInvalid, match="tells of 3000000 rows in"):
        read_table(bomb)
    saved = Store(tmp_path / "store").save(RunInfo(), Trace())
    (saved.path / "kernels.parquet").write_bytes(bomb.read_bytes())
    with pytest.raises(BrokenRun, match=r"kernels\.parquet cannot be read \(it tells of 3000000 rows"):
        Store(tmp_path / "store").load(saved.info.id)
    folder = parquet_folder(tmp_path / "export", names_are_texts=False)
    (folder / "StringIds.parquet").write_bytes(bomb.read_bytes())
    with pytest.raises(UnreadableTrace, match=r"damaged Parquet file \(it tells of 3000000 rows"):
        read_trace(folder)


def test_what_a_file_tells_is_not_read(bomb: Path) -> None:
    found = told(bomb)
    assert found.rows == 3_000_000 and 0 < found.bytes < 3_000_000 * 8


def test_rows_that_differ_are_read_however_many(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    count = 1_500_000
    start = np.arange(count, dtype=np.int64) * 3_000
    parquet.write_table(pa.table({"id": start, "kind": np.zeros(count, dtype=np.int8)}), path, compression="zstd")
    assert read_table(path, ["id"])["id"].to_numpy()[-1] == start[-1]

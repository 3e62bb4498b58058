"""Folders of Parquet files from Nsight Systems: the same tables as from SQLite."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from nsys_files import KERNEL
from nsys_files import parquet_folder as small
from oracle import SAMPLES, needs_samples
from pyarrow import parquet

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.readers.sqlite_file import opened
from fusionscope.profiler.trace import TABLES


@pytest.mark.parametrize("names_are_texts", [False, True])
def test_names_as_ids_and_as_texts(tmp_path: Path, names_are_texts: bool) -> None:
    trace = read_trace(small(tmp_path / "x", names_are_texts))
    assert list(trace.kernels["name"]) == ["gemm(int)", "norm"]
    assert list(trace.kernels["node"]) == [1, -1] and list(trace.kernels["graph"]) == [3, -1]
    assert list(trace.kernels["duration_ns"]) == [10, 5] and set(trace.kernels["process"]) == {55}
    assert list(trace.launches["name"]) == ["cudaGraphLaunch"]
    assert list(trace.kernels["replay"]) == [0, 0]


@needs_samples
def test_the_same_as_from_sqlite(tmp_path: Path) -> None:
    path = SAMPLES / "h200_ar_norm/split.nsys.sqlite"
    with opened(path) as database:
        for name in database.tables:
            rows = pd.read_sql_query(f'SELECT * FROM "{name}"', database.connection, dtype_backend="pyarrow")
            if len(rows):
                rows.to_parquet(tmp_path / f"{name}.parquet")
    want, found = read_trace(path), read_trace(tmp_path)
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(found, table), getattr(want, table), check_categorical=False)
    assert found.machine == want.machine and found.warnings == want.warnings


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    folder = small(tmp_path / "x", True)
    kernels = folder / f"{KERNEL}.parquet"
    table = parquet.read_table(kernels)
    parquet.write_table(table.drop_columns(["start"]), kernels)
    with pytest.raises(UnreadableTrace, match=f"table {KERNEL} has no column start; export the report again"):
        read_trace(folder)
    kernels.write_bytes(b"PAR1 cut")
    with pytest.raises(UnreadableTrace, match="a damaged Parquet file"):
        read_trace(folder)
    with pytest.raises(UnreadableTrace, match="one table of a Parquet or Arrow export: give the folder"):
        read_trace(kernels)

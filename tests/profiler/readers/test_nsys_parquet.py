"""Folders of Parquet files from Nsight Systems: the same tables as from SQLite."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from oracle import SAMPLES, needs_samples
from pyarrow import parquet

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.readers.sqlite_file import opened
from fusionscope.profiler.trace import TABLES

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
PID = (1 << 52 | 55 << 24) + 77


def small(folder: Path, names_are_texts: bool) -> Path:
    folder.mkdir()
    strings = {1: "gemm(int)", 2: "norm", 3: "cudaGraphLaunch_v10000"}

    def name(*ids: int) -> pa.Array:
        return pa.array([strings[i] for i in ids] if names_are_texts else list(ids))

    kernels = {
        "start": [100, 120],
        "end": [110, 125],
        "deviceId": pa.array([0, 0], pa.int32()),
        "streamId": pa.array([7, 7], pa.uint32()),
        "correlationId": [9, 9],
        "globalPid": pa.array([PID, PID], pa.uint64()),
        "demangledName": name(1, 2),
        "graphNodeId": pa.array([(3 << 32) + 1, None], pa.uint64()),
    }
    calls = {"start": [90], "end": [95], "globalTid": [PID], "correlationId": [9], "nameId": name(3)}
    parquet.write_table(pa.table(kernels), folder / f"{KERNEL}.parquet")
    parquet.write_table(pa.table(calls), folder / f"{RUNTIME}.parquet")
    if not names_are_texts:
        table = pa.table({"id": list(strings), "value": list(strings.values())})
        parquet.write_table(table, folder / "StringIds.parquet")
    return folder


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

"""Small exports of Nsight Systems that are not SQLite."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
PID = (1 << 52 | 55 << 24) + 77


def parquet_folder(folder: Path, names_are_texts: bool) -> Path:
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

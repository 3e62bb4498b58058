"""RPD files: the operations of graphs, which the file's own view hides."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from oracle import SAMPLES, agrees, needs_samples, oracle
from rpd_file import rpd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import read_trace


@needs_samples
def test_B51_sample_with_its_graph_operations() -> None:
    trace, want = read_trace(SAMPLES / "rpd_mi300_vllm_decode.rpd.gz"), oracle("rpd_mi300_vllm_decode.rpd.gz")
    agrees(trace, want)
    tasks = trace.kernels[(trace.kernels["replay"] >= 0) & (trace.kernels["kind"] == "kernel")]
    replays = tasks.groupby("replay").size()
    assert {str(size): int(count) for size, count in replays.value_counts().items()} == want["tasks_per_hipGraphLaunch"]
    assert len(tasks) == want["by_opType"]["Task"]
    assert int(trace.launches["is_graph"].sum()) == 20


def test_tasks_belong_to_their_graph_launch(tmp_path: Path) -> None:
    apis = [("hipLaunchKernel", 9), ("hipGraphLaunch", 9), ("hipMemcpyAsync", 9), ("UserMarker", 9)]
    ops = [
        ("_Z4gemmi", "KernelExecution", 10, 20, 1),
        ("norm.kd", "Task", 20, 25, 2),
        ("add", "Task", 25, 26, 2),
        ("", "CopyHostToDevice", 5, 9, 3),
        ("", "FillBuffer", 30, 31, 0),
    ]
    trace = read_trace(rpd(tmp_path / "x", apis, ops))
    rows = trace.kernels
    assert list(rows["name"]) == ["CopyHostToDevice", "gemm(int)", "norm", "add", "FillBuffer"]
    assert list(rows["kind"]) == ["memcpy", "kernel", "kernel", "kernel", "memset"]
    assert list(rows["replay"]) == [-1, -1, 0, 0, -1]
    assert set(rows["process"]) == {9} and set(rows["device"]) == {3} and set(rows["stream"]) == {1}
    assert list(trace.ranges["name"]) == ["prefill"]
    assert any(w.startswith("1 of 5 operations have no host call") for w in trace.warnings)


def test_only_graph_launches(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="holds 1 graph launches and no kernel"):
        read_trace(rpd(tmp_path / "x", [("hipGraphLaunch", 9)], []))


def test_rows_that_are_still_in_the_log_are_said(tmp_path: Path) -> None:
    path = rpd(tmp_path / "x.rpd", [("hipLaunchKernel", 9)], [("k", "KernelExecution", 1, 2, 1)])
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("INSERT INTO rocpd_string (string) VALUES ('more')")
    writer.commit()
    try:
        warnings = read_trace(path).warnings
    finally:
        writer.close()
    assert any("x.rpd-wal holds" in w and "wal_checkpoint" in w for w in warnings)
    assert not any("-wal" in w for w in read_trace(path).warnings)


def test_a_value_that_no_file_holds(tmp_path: Path) -> None:
    path = rpd(tmp_path / "x", [("hipLaunchKernel", 9)], [("k", "Task", 1, 2, 1)])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE rocpd_op SET start = 'soon'")
    connection.commit()
    connection.close()
    with pytest.raises(UnreadableTrace, match="a value that no RPD file holds"):
        read_trace(path)


@pytest.mark.filterwarnings("error")
def test_ids_of_any_size_join_and_the_first_row_of_an_id_counts(tmp_path: Path) -> None:
    kernels = [(name, "Task", 10 * k, 10 * k + 5, 1 + k % 2) for k, name in enumerate("abc")]
    path = rpd(tmp_path / "x", [("hipGraphLaunch", 9), ("hipLaunchKernel", 8)], kernels)
    connection = sqlite3.connect(path)
    for table, column in (("rocpd_op", "id"), ("rocpd_api_ops", "op_id")):
        for old, new in ((1, -(2**63)), (2, 2**63 - 1), (3, 5)):
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, old))
    for table, column in (("rocpd_api", "id"), ("rocpd_api_ops", "api_id")):
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = 2", (2**63 - 1,))
    connection.execute("INSERT INTO rocpd_api_ops (api_id, op_id) VALUES (1, ?)", (2**63 - 1,))
    connection.commit()
    connection.close()
    rows = read_trace(path).kernels.sort_values("start_ns")
    assert list(rows["process"]) == [9, 8, 9]
    assert list(rows["correlation"]) == [1, 2**63 - 1, 1]

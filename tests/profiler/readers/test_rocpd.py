"""rocprofv3's database: base tables, row ids resolved, several writers in one file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from oracle import SAMPLES, agrees, needs_samples, oracle
from rocpd_file import Writer

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import read_trace


@needs_samples
def test_sample() -> None:
    trace = read_trace(SAMPLES / "synthetic_rocpd_v3_decode.db.gz")
    agrees(trace, oracle("synthetic_rocpd_v3_decode.db.gz"))
    replays = trace.kernels[trace.kernels["replay"] >= 0]
    assert list(replays.groupby("replay").size()) == [24, 24, 24, 24]
    assert trace.machine["gpu"] == "AMD Radeon"


def test_a_graph_launch_owns_its_kernels_and_names_are_clean(tmp_path: Path) -> None:
    regions = [
        ("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 5, 8, 7),
        ("HIP_RUNTIME_API_EXT", "hipGraphLaunch", 15, 18, 9),
        ("HIP_RUNTIME_API_EXT", "hipMemcpyAsync", 1, 2, 3),
        ("MARKER_CORE_API", "decode", 1, 50, 2),
    ]
    kernels = [("_Z4gemmi.kd", 10, 20, 7), ("a.kd", 20, 30, 9), ("b [clone .kd]", 31, 45, 9)]
    path = Writer(tmp_path / "x", device=4, kernels=kernels, regions=regions, copies=[("HOST_TO_DEVICE", 1, 3)]).write()
    trace = read_trace(path)
    rows = trace.kernels[trace.kernels["kind"] == "kernel"]
    assert list(rows["name"]) == ["gemm(int)", "a", "b"]
    assert list(rows["raw_name"]) == ["_Z4gemmi.kd", "a.kd", "b [clone .kd]"]
    assert list(rows["replay"]) == [-1, 0, 0]
    assert set(rows["process"]) == {100} and set(rows["device"]) == {4} and set(rows["stream"]) == {2}
    assert list(trace.launches["name"]) == ["hipLaunchKernel", "hipGraphLaunch"]
    assert list(trace.ranges["name"]) == ["decode"]
    copies = trace.kernels[trace.kernels["kind"] == "memcpy"]
    assert list(copies["name"]) == ["HOST_TO_DEVICE"] and list(copies["device"]) == [4]
    assert trace.machine == {"profiler": "rocprofv3", "gpu": "AMD Instinct MI300X"}
    assert trace.warnings == ()


def test_B51_kernels_that_the_views_drop_are_read(tmp_path: Path) -> None:
    path = Writer(tmp_path / "x", kernels=[("a", 1, 2, 5), ("b", 3, 5, None), (None, 7, 9, 6)]).write()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM kernels").fetchone() == (2,)
    connection.close()
    trace = read_trace(path)
    assert list(trace.kernels["name"]) == ["a", "b", "kernel 1000000"]
    assert list(trace.kernels["duration_ns"]) == [1, 2, 2]
    assert "1 of 3 kernels have no symbol: they carry their number." in trace.warnings


def test_a_merged_file_keeps_its_writers_apart(tmp_path: Path) -> None:
    path = tmp_path / "merged.db"
    Writer(path, 1, pid=100, device=1, kernels=[("a", 10, 20, 7), ("b", 20, 25, 7)]).write()
    Writer(path, 2, pid=200, device=2, kernels=[("c", 11, 14, 7)]).write()
    trace = read_trace(path)
    assert list(trace.kernels["name"]) == ["a", "b", "c"]
    assert list(trace.kernels["rank"]) == [0, 0, 1] and list(trace.kernels["process"]) == [100, 100, 200]
    assert any("rank 0 is process 100 on device 1, rank 1 is process 200 on device 2" in w for w in trace.warnings)


def test_what_a_database_lacks_is_named(tmp_path: Path) -> None:
    launches = [("HIP_RUNTIME_API_EXT", "hipGraphLaunch", 5, 8, 7)]
    path = Writer(tmp_path / "none.db", regions=launches).write()
    with pytest.raises(UnreadableTrace, match=r"1 graph launches and no kernel.*--kernel-trace"):
        read_trace(path)
    path = Writer(tmp_path / "old.db", kernels=[("a", 1, 2, 3)]).write()
    connection = sqlite3.connect(path)
    table = "rocpd_kernel_dispatch_0197aaaa_0000_7000_8000_000000000001"
    connection.execute('DROP VIEW "kernels"')
    connection.execute('DROP VIEW "rocpd_kernel_dispatch"')
    connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "start"')
    connection.commit()
    connection.close()
    with pytest.raises(UnreadableTrace, match="has no column start; record again with `rocprofv3"):
        read_trace(path)


def test_a_cut_database(tmp_path: Path) -> None:
    path = Writer(tmp_path / "cut.db", kernels=[(f"k{i}", i, i + 1, i) for i in range(2000)]).write()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableTrace, match="damaged SQLite file"):
        read_trace(path)


def test_the_file_is_not_touched(tmp_path: Path) -> None:
    path = Writer(tmp_path / "x.db", kernels=[("a", 1, 2, 3)]).write()
    before = path.read_bytes()
    path.chmod(0o444)
    read_trace(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["x.db"]

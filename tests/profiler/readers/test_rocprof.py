"""rocprof v1 and v2: CSV, text, JSON and database, in the form that their sources write."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.trace import Trace

V1 = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgp,lds,scr,arch_vgpr,accum_vgpr,sgpr,wave_size,sig,obj,"
    "DispatchNs,BeginNs,EndNs,CompleteNs,DurationNs"
)
V2 = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID\n"
)
ACTIVITY = "Domain,Operation,Kernel_Name,Start_Timestamp,Stop_Timestamp,Correlation_ID\n"
TEXT = (
    'Dispatch_ID({}), GPU_ID(4), Queue_ID(1), Process_ID(55), Thread_ID(55), Grid_Size(64), Kernel_Name("{}"), '
    "Begin_Timestamp({}), End_Timestamp({}), Correlation_ID({})"
)


def v1(name: str, begin: int | None, end: int | None) -> str:
    return f'0,"{name}",4,1,0,55,55,64,64,0,0,8,0,16,64,0x0,0x7f,1,{begin},{end},9,1'


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def two_kernels(trace: Trace) -> None:
    rows = trace.kernels
    assert list(rows["name"]) == ["gemm(int)", "norm<a, b>(int)"]
    assert list(rows["start_ns"]) == [3489389203444239, 3489389203444250]
    assert list(rows["duration_ns"]) == [10, 7]
    assert set(rows["device"]) == {4} and set(rows["stream"]) == {1} and set(rows["process"]) == {55}


TIMES = ((3489389203444239, 3489389203444249), (3489389203444250, 3489389203444257))
NAMES = ("_Z4gemmi.kd", "norm<a, b>(int) [clone .kd]")


def test_v1_csv(tmp_path: Path) -> None:
    rows = [v1(name, *times) for name, times in zip(NAMES, TIMES, strict=True)]
    trace = read_trace(write(tmp_path / "any.name", V1, *rows))
    two_kernels(trace)
    assert list(trace.kernels["raw_name"]) == list(NAMES)
    assert trace.machine == {"profiler": "rocprof"}


def test_v1_prints_none_where_it_has_no_time(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "x", V1, v1("a", None, None), v1("b", 5, 9)))
    assert list(trace.kernels["untimed"]) == [True, False]
    assert any("1 of 2 GPU records have no time" in w for w in trace.warnings)


def test_v1_without_times(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid", '0,"a",0,0,0,1,1')
    with pytest.raises(UnreadableTrace, match="without their times: record with `rocprof --timestamp on`"):
        read_trace(path)


def test_v1_summary(tmp_path: Path) -> None:
    path = write(tmp_path / "x", '"Name","Calls","TotalDurationNs","AverageNs","Percentage"', '"a",1,2,3,4')
    with pytest.raises(UnreadableTrace, match="a summary with one row a kernel name"):
        read_trace(path)


def test_v2_csv_has_an_empty_line_after_its_header(tmp_path: Path) -> None:
    rows = [
        f'{i},4,1,55,55,64,64,0,0,8,0,16,64,"{name}",{start},{end},{i}'
        for i, (name, (start, end)) in enumerate(zip(NAMES, TIMES, strict=True), 1)
    ]
    two_kernels(read_trace(write(tmp_path / "x", V2, *rows)))


def test_v2_activity_says_stop(tmp_path: Path) -> None:
    rows = ['HIP_OPS_DOMAIN,DispatchKernel,"a",10,20,8', 'HIP_OPS_DOMAIN,DispatchKernel,"b",20,22,8']
    rows.append("HIP_OPS_DOMAIN,CopyHostToDevice,,1,4,3")
    trace = read_trace(write(tmp_path / "x", ACTIVITY, *rows))
    assert list(trace.kernels["name"]) == ["CopyHostToDevice", "a", "b"]
    assert list(trace.kernels["kind"]) == ["memcpy", "kernel", "kernel"]
    assert list(trace.kernels["replay"]) == [-1, 0, 0]


def test_v2_text(tmp_path: Path) -> None:
    lines = [TEXT.format(i, name, *times, 0) for i, (name, times) in enumerate(zip(NAMES, TIMES, strict=True), 1)]
    two_kernels(read_trace(write(tmp_path / "x", lines[0], "ROCProfilerV2: a line of its own", lines[1])))
    path = write(tmp_path / "y", lines[0].replace(str(TIMES[0][0]), "soon"))
    with pytest.raises(UnreadableTrace, match="broken in line 1 of its kernels"):
        read_trace(path)


def v1_events() -> list[dict[str, Any]]:
    def section(pid: int, name: str) -> dict[str, Any]:
        return {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name", "sort_index": pid}

    def event(pid: int, name: str, begin: int, end: int, index: int, **args: str) -> dict[str, Any]:
        # ts and dur are texts of whole microseconds, and a duration of 0 is written as 1.
        when = {"ts": str(begin // 1000), "dur": str(max((end - begin) // 1000, 1)), "ph": "X"}
        told = {"BeginNs": str(begin), "EndNs": str(end), "pid": "55", "tid": "77", "Index": str(index), "Name": name}
        return {**when, "name": name, "pid": str(pid), "tid": "0", "args": {**told, **args}}

    gpu = {"dev-id": "4", "queue-id": "1"}
    return [
        {},
        section(2, "CPU HIP API"),
        section(6, "GPU4"),
        section(0, "Markers and Ranges"),
        event(2, "hipLaunchKernel", TIMES[0][0] - 100, TIMES[0][0] - 90, 7),
        event(0, "decode step", 5, 9, 0),
        *(event(6, n, *t, i, **gpu) for n, t, i in zip(NAMES, TIMES, (7, 8), strict=True)),
    ]


def test_v1_json_takes_the_exact_times(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(json.dumps({"traceEvents": v1_events(), "displayTimeUnit": "ns"}))
    trace = read_trace(path)
    two_kernels(trace)
    assert list(trace.launches["name"]) == ["hipLaunchKernel"] and list(trace.ranges["name"]) == ["decode step"]
    path.write_text(json.dumps({"traceEvents": v1_events()[:6]}))
    with pytest.raises(UnreadableTrace, match=r"without GPU work \(its sections: CPU HIP API, GPU4"):
        read_trace(path)


def test_v1_database(tmp_path: Path) -> None:
    path = tmp_path / "x"
    connection = sqlite3.connect(path)
    columns = 'BeginNs, EndNs, pid, tid, Name, "Index", Data, __section, __lane'
    for table in ("OPS", "HIP", "rocTX"):
        connection.execute(f"CREATE TABLE {table} ({columns})")
    for name, times, index in zip(NAMES, TIMES, (7, 8), strict=True):
        connection.execute("INSERT INTO OPS VALUES (?,?,55,77,?,?,'',4,1)", (*times, name, index))
    connection.execute("INSERT INTO HIP VALUES (1,2,55,77,'hipLaunchKernel',7,'',0,0)")
    connection.commit()
    connection.close()
    trace = read_trace(path)
    two_kernels(trace)
    assert list(trace.launches["correlation"]) == [7]


def test_B34_the_runtimes_own_kernels_are_counted_and_said(tmp_path: Path) -> None:
    rows = [v1("__amd_rocclr_copyBuffer.kd", 1, 2), v1("gemm", 3, 4), v1("__amd_rocclr_fillBufferAligned", 5, 6)]
    trace = read_trace(write(tmp_path / "x", V1, *rows))
    assert set(trace.kernels["kind"]) == {"kernel"}
    assert any(
        "2 of 3 launches are HIP's own copies and fills" in w and "only within one profiler" in w
        for w in trace.warnings
    )

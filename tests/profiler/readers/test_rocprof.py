"""rocprof v1 and v2: CSV, text, JSON and database, in the form that their sources write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rocprof_files import ACTIVITY, NAMES, TEXT, TIMES, V1, V2, v1, v1_database, v1_events, write

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import read_trace, rocprof_csv
from fusionscope.profiler.trace import Trace


def two_kernels(trace: Trace) -> None:
    rows = trace.kernels
    assert list(rows["name"]) == ["gemm(int)", "norm<a, b>(int)"]
    assert list(rows["start_ns"]) == [3489389203444239, 3489389203444250]
    assert list(rows["duration_ns"]) == [10, 7]
    assert set(rows["device"]) == {4} and set(rows["stream"]) == {1} and set(rows["process"]) == {55}


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


def test_v2_text_is_read_alike_whichever_way_a_line_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of one form are taken together, the others field by field: each form stands among the other here."""
    monkeypatch.setattr(rocprof_csv, "_AT_ONCE", 2)
    names = ["a", 'b \\"quoted\\" (x)', "c, d(e)", "é" * 3, "a", "b", "c"]
    lines = [TEXT.format(k, name, 100 * k, 100 * k + 7, k) for k, name in enumerate(names)]
    lines[3] = f'Kernel_Name("{names[3]}"), Begin_Timestamp(300), End_Timestamp(307), GPU_ID(4), Process_ID(55)'
    lines[5] += ", More(1) words"
    lines.insert(2, "a line of the program's own (with brackets)")
    lines.insert(5, 'Dispatch_ID(9), Kernel_Name("lost"')
    trace = read_trace(write(tmp_path / "out.txt", *lines))
    assert list(trace.kernels["raw_name"]) == names
    assert list(trace.kernels["start_ns"]) == [100 * k for k in range(7)]
    assert set(trace.kernels["duration_ns"]) == {7} and set(trace.kernels["device"]) == {4}
    assert list(trace.kernels["correlation"]) == [0, 1, 2, -1, 4, 5, 6]


@pytest.mark.parametrize("value", ["x", "9" * 30])
def test_v2_text_with_a_number_that_is_none_is_refused_with_its_line(tmp_path: Path, value: str) -> None:
    lines = [TEXT.format(k, "a", 100 * k, 100 * k + 7, k) for k in range(3)]
    lines[2] = lines[2].replace("End_Timestamp(207)", f"End_Timestamp({value})")
    with pytest.raises(UnreadableTrace, match="is broken in line 3 of its kernels"):
        read_trace(write(tmp_path / "out.txt", *lines))


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
    path = v1_database(tmp_path / "x")
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

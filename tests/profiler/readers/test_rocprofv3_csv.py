"""rocprofv3's CSV: three generations of headers, and what stands in the files beside."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard
from oracle import SAMPLES, agrees, needs_samples, oracle
from rocprofv3_files import API, LATER, NEW, OLD
from rocprofv3_files import csv_kernel as kernel
from rocprofv3_files import write_csv as write

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.trace import Trace


@needs_samples
def test_sample_whose_names_hold_commas() -> None:
    trace = read_trace(SAMPLES / "rocprofv3_hipgraph_decode_kernel_trace.csv")
    agrees(trace, oracle("rocprofv3_hipgraph_decode_kernel_trace.csv"))
    assert int(trace.kernels["name"].astype(str).str.contains(",").sum()) == 138
    replays = trace.kernels[trace.kernels["replay"] >= 0]
    assert list(replays.groupby("replay").size()) == [24, 24, 24, 24]
    assert any("no host call for 4 groups of 24 kernels" in w and "--hip-trace" in w for w in trace.warnings)


def one(trace: Trace) -> dict[str, object]:
    assert len(trace.kernels) == 1
    return dict(trace.kernels.iloc[0])


@pytest.mark.parametrize(
    ("header", "row", "stream", "graph", "node"),
    [
        (OLD, "KERNEL_DISPATCH,4,3,77,1,9,k<1>,5,63855948165371,63855948165372,0,0,64,1,1,64,1,1", 3, -1, -1),
        (NEW, kernel("k<1>", 63855948165371, 63855948165372, 5), 2, -1, -1),
        (LATER, "0197,KERNEL_DISPATCH,Agent 4,1,2,77,1,9,k<1>,5,63855948165371,63855948165372,1,6,11,64", 2, 6, 11),
        (LATER, "0197,KERNEL_DISPATCH,Agent 4,1,2,77,1,9,k<1>,5,63855948165371,63855948165372,1,0,0,64", 2, -1, -1),
    ],
)
def test_generations_of_headers(tmp_path: Path, header: str, row: str, stream: int, graph: int, node: int) -> None:
    found = one(read_trace(write(tmp_path / "any.name", header, row)))
    assert (found["name"], found["start_ns"], found["duration_ns"]) == ("k<1>", 63855948165371, 1)
    assert (found["device"], found["stream"], found["correlation"]) == (4, stream, 5)
    assert (found["graph"], found["node"]) == (graph, node)


def test_the_files_beside_tell_launches_ranges_copies_and_the_gpu(tmp_path: Path) -> None:
    path = write(
        tmp_path / "host_55_kernel_trace.csv",
        NEW,
        kernel("_Z4gemmi.kd", 10, 20, 7),
        kernel("a", 20, 25, 8, 2),
        kernel("b", 25, 26, 8, 3),
    )
    write(
        tmp_path / "host_55_hip_api_trace.csv",
        API,
        "HIP_RUNTIME_API_EXT,hipLaunchKernel,55,77,7,5,6",
        "HIP_RUNTIME_API_EXT,hipGraphLaunch,55,77,8,7,8",
        "HIP_RUNTIME_API_EXT,hipMalloc,55,77,9,1,2",
    )
    write(tmp_path / "host_55_marker_api_trace.csv", API, "MARKER_CORE_API,decode step,55,77,1,3,30")
    write(
        tmp_path / "host_55_memory_copy_trace.csv",
        "Kind,Direction,Stream_Id,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,End_Timestamp",
        "MEMORY_COPY,MEMORY_COPY_HOST_TO_DEVICE,2,Agent 0,Agent 4,3,1,4",
    )
    write(
        tmp_path / "host_55_agent_info.csv",
        "Node_Id,Agent_Type,Name,Product_Name",
        "0,CPU,EPYC,AMD EPYC",
        "4,GPU,gfx942,AMD Instinct MI300X",
    )
    trace = read_trace(path)
    rows = trace.kernels
    assert list(rows["name"]) == ["MEMORY_COPY_HOST_TO_DEVICE", "gemm(int)", "a", "b"]
    assert list(rows["kind"]) == ["memcpy", "kernel", "kernel", "kernel"]
    assert list(rows["replay"]) == [-1, -1, 0, 0] and set(rows["process"]) == {55} and set(rows["device"]) == {4}
    assert list(trace.launches["name"]) == ["hipLaunchKernel", "hipGraphLaunch"]
    assert list(trace.launches["is_graph"]) == [False, True]
    assert list(trace.ranges["name"]) == ["decode step"]
    assert trace.machine == {"profiler": "rocprofv3", "gpu": "AMD Instinct MI300X"}
    assert trace.warnings == ()


def test_a_file_of_calls_names_the_kernels_beside(tmp_path: Path) -> None:
    calls = write(tmp_path / "9_hip_api_trace.csv", API, "HIP_RUNTIME_API,hipLaunchKernel,9,9,1,1,2")
    with pytest.raises(UnreadableTrace, match=r"no kernel: give the \*_kernel_trace.csv of the same process"):
        read_trace(calls)
    write(tmp_path / "9_kernel_trace.csv", NEW, kernel("a", 1, 2, 1))
    with pytest.raises(UnreadableTrace, match=r"give .*9_kernel_trace\.csv; this one is read with it"):
        read_trace(calls)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_packed(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    path = tmp_path / "x"
    path.write_bytes(pack((NEW + "\n" + kernel("a", 1, 3, 1) + "\n").encode()))
    assert one(read_trace(path))["duration_ns"] == 2


def test_B23_all_kernels_of_a_replay_share_one_id_and_have_no_node(tmp_path: Path) -> None:
    whole = [kernel(name, start, start + 5, 3, start) for name, start in (("a", 10), ("b", 20), ("a", 30))]
    short = [kernel(name, start, start + 5, 4, start) for name, start in (("a", 110), ("a", 130))]
    trace = read_trace(write(tmp_path / "x.csv", NEW, *whole, *short))
    assert list(trace.kernels["replay"]) == [0, 0, 0, 1, 1]
    assert set(trace.kernels["node"]) == {-1}
    assert any("2 groups of 2 to 3 kernels" in w for w in trace.warnings)


def test_B32_two_processes_wrote_one_file(tmp_path: Path) -> None:
    rows = [kernel("a", 1, 2, 5, 1, "Agent 4"), kernel("b", 2, 3, 6, 2, "Agent 4"), kernel("a", 1, 4, 5, 1, "Agent 5")]
    trace = read_trace(write(tmp_path / "x.csv", NEW, *rows))
    assert list(trace.kernels["rank"]) == [0, 0, 1]
    assert list(trace.kernels["replay"]) == [-1, -1, -1]
    assert any("1 dispatch ids stand twice" in w and "in row 4" in w and "told apart" in w for w in trace.warnings)
    assert any("%pid%" in w for w in trace.warnings)
    rows[2] = kernel("a", 11, 14, 5, 1, "Agent 4")
    trace = read_trace(write(tmp_path / "y.csv", NEW, *rows))
    assert any("1 dispatch ids stand twice" in w and "told apart" not in w for w in trace.warnings)


def test_B33_launches_without_kernels_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "9_kernel_trace.csv", NEW, *(kernel("a", 10 * i, 10 * i + 5, i, i) for i in range(1, 121)))
    calls = [f"HIP_RUNTIME_API,hipLaunchKernel,9,77,{i},{10 * i - 5},{10 * i - 4}" for i in range(1, 401)]
    write(tmp_path / "9_hip_api_trace.csv", API, *calls)
    trace = read_trace(path)
    assert len(trace.kernels) == 120 and len(trace.launches) == 400
    assert any(w.startswith("280 of 400 host launches have no kernel") for w in trace.warnings)


def test_B35_a_kernel_before_its_copy_keeps_its_time(tmp_path: Path) -> None:
    path = write(tmp_path / "9_kernel_trace.csv", NEW, kernel("a", 100, 120, 2))
    write(
        tmp_path / "9_memory_copy_trace.csv",
        "Kind,Direction,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,End_Timestamp",
        "MEMORY_COPY,HOST_TO_DEVICE,0,4,1,130,140",
    )
    rows = read_trace(path).kernels
    assert list(rows["start_ns"]) == [100, 130] and list(rows["kind"]) == ["kernel", "memcpy"]


def test_records_without_a_time(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", NEW, kernel("a", 0, 0, 1), kernel("b", 9, 4, 2, 2), kernel("c", 5, 6, 3, 3))
    trace = read_trace(path)
    assert list(trace.kernels["untimed"]) == [True, True, False] and list(trace.kernels["duration_ns"]) == [0, 0, 1]
    assert any("2 of 3 GPU records have no time (the first is 'a', from 0 to 0)" in w for w in trace.warnings)


def test_a_cut_last_row_is_left_out_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", NEW, *(kernel("a", 10 * i, 10 * i + 5, i, i) for i in range(1, 5)))
    path.write_bytes(path.read_bytes()[:-60])
    trace = read_trace(path)
    assert len(trace.kernels) == 3
    assert any("1 of 4 rows are cut or broken" in w and "22" in w for w in trace.warnings)


def test_what_is_broken_is_said_with_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", NEW, kernel("a", 1, 2, 1), kernel("b", 3, 4, 2).replace(",3,4,", ",soon,4,"))
    with pytest.raises(UnreadableTrace, match=r"Row #3.*invalid value 'soon'"):
        read_trace(path)
    path = write(tmp_path / "y.csv", NEW)
    with pytest.raises(UnreadableTrace, match="holds no GPU kernel"):
        read_trace(path)


def test_names_in_broken_utf8_are_kept_readable(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", NEW, kernel("aQ", 1, 2, 1), kernel("aR", 3, 4, 2, 2))
    path.write_bytes(path.read_bytes().replace(b"aQ", b"a\xc3").replace(b"aR", b"a\xff"))
    assert list(read_trace(path).kernels["name"]) == ["a�", "a�"]


def test_a_summary_is_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", '"Name","Calls","TotalDurationNs","AverageNs","Percentage"', '"k",3,4,5,6')
    with pytest.raises(UnreadableTrace, match="a summary with one row a kernel name"):
        read_trace(path)

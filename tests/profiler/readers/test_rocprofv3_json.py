"""rocprofv3's JSON: one object per process, records resolved through lists that change with every version."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from oracle import SAMPLES, agrees, needs_samples, oracle
from rocprofv3_files import dispatch, process, record
from rocprofv3_files import write_json as write

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import read_trace


@needs_samples
def test_sample() -> None:
    trace = read_trace(SAMPLES / "rocprofv3_mi350x_results.json.gz")
    agrees(trace, oracle("rocprofv3_mi350x_results.json.gz"))
    assert trace.machine["gpu"] == "AMD Instinct MI350X"
    assert set(trace.kernels["process"]) == {908}
    assert not trace.kernels["name"].astype(str).str.endswith(".kd").any()


def test_everything_that_a_process_records(tmp_path: Path) -> None:
    path = write(
        tmp_path / "any.name",
        process(
            55,
            kernel_dispatch=[
                dispatch(6, 25, 30, 8, graph_exec_id=2, graph_node_id=1),
                dispatch(6, 20, 25, 8, graph_exec_id=2, graph_node_id=0),
                dispatch(5, 63855948165371, 63855948165372, 7),
            ],
            hip_api=[record(1, 2, 5, 6, 7), record(1, 1, 7, 8, 8), record(1, 0, 1, 2, 9)],
            marker_api=[record(2, 1, 3, 40, 1)],
            memory_copy=[record(3, 1, 1, 4, 3, dst_agent_id={"handle": 70}, src_agent_id={"handle": 60})],
        ),
    )
    trace = read_trace(path)
    rows = trace.kernels
    assert list(rows["name"]) == ["MEMORY_COPY_HOST_TO_DEVICE", "norm", "norm", "gemm(int)"]
    assert list(rows["raw_name"])[1:] == ["norm.kd", "norm.kd", "_Z4gemmi.kd"]
    assert list(rows["start_ns"]) == [1, 20, 25, 63855948165371]
    assert list(rows["replay"]) == [-1, 0, 0, -1] and list(rows["node"]) == [-1, 0, 1, -1]
    assert set(rows["device"]) == {4} and set(rows["process"]) == {55} and list(rows["stream"]) == [-1, 3, 3, 3]
    assert list(trace.launches["name"]) == ["hipLaunchKernel", "hipGraphLaunch"]
    assert list(trace.ranges["name"]) == ["decode step"]
    assert trace.machine == {"profiler": "rocprofv3", "gpu": "AMD Instinct MI300X"}
    assert trace.warnings == ()


def test_two_processes_are_two_ranks(tmp_path: Path) -> None:
    first, second = (process(pid, kernel_dispatch=[dispatch(6, 1, 2, 3)]) for pid in (30, 20))
    trace = read_trace(write(tmp_path / "x", first, second))
    assert list(trace.kernels["rank"]) == [0, 1] and list(trace.kernels["process"]) == [20, 30]
    assert list(trace.kernels["replay"]) == [-1, -1]


def test_a_kernel_without_a_symbol_keeps_its_number(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "x", process(1, kernel_dispatch=[dispatch(77, 1, 2, 3), dispatch(0, 2, 3, 4)])))
    assert list(trace.kernels["name"]) == ["kernel 77", "kernel 0"]
    assert "2 of 2 kernels have no symbol: they carry their number." in trace.warnings


def test_a_cut_document_says_where(tmp_path: Path) -> None:
    path = write(tmp_path / "x", process(1, kernel_dispatch=[dispatch(6, i, i + 1, i) for i in range(100)]))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1500])
    with pytest.raises(UnreadableTrace, match=r"\(at byte \d+\): copy or record the trace again"):
        read_trace(path)
    path.write_bytes(gzip.compress(whole)[:-400])
    with pytest.raises(UnreadableTrace, match="damaged or truncated gzip file"):
        read_trace(path)
    path.write_bytes(whole.replace(b'"start_timestamp": 50,', b'"start_timestamp": "soon",'))
    with pytest.raises(UnreadableTrace, match="a broken record in kernel_dispatch"):
        read_trace(path)
    path.write_bytes(whole + whole)
    with pytest.raises(UnreadableTrace, match=r"goes on after the end.*two processes wrote one path"):
        read_trace(path)


def test_nothing_recorded(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="holds no GPU kernel"):
        read_trace(write(tmp_path / "x"))
    with pytest.raises(UnreadableTrace, match="1 graph launches and no kernel"):
        read_trace(write(tmp_path / "x", process(1, kernel_dispatch=[], hip_api=[record(1, 1, 7, 8, 8)])))

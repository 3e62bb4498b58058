"""What other tools got wrong, as their users reported it: each a small trace with the right answer.

Numbers are those of the collection in docs/formats.md; what AMD's own formats add is tested with their readers.
"""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from oracle import SAMPLES, busy, needs_samples, oracle

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.trace import Trace

Json = dict[str, Any]


def kernel(name: str, ts: float, dur: float, correlation: int = 1, **args: Any) -> Json:
    told = {"device": 0, "stream": 7, "correlation": correlation, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": told}


def call(name: str, ts: float, dur: float, correlation: int, tid: int = 77) -> Json:
    told = {"cbid": 1, "correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 55, "tid": tid, "ts": ts, "dur": dur, "args": told}


def read(path: Path, *events: Json, **metadata: Any) -> Trace:
    path.write_text(json.dumps({"traceEvents": list(events), **metadata}))
    return read_trace(path)


def test_B01_a_corrupt_duration_is_said_and_kept(tmp_path: Path) -> None:
    events = [kernel("a", 1, 5), kernel("b", 10, 1.6e6), kernel("c", 20, 5), kernel("d", 30, 5)]
    trace = read(tmp_path / "x", *events)
    assert list(trace.kernels["duration_ns"]) == [5_000, 1_600_000_000, 5_000, 5_000]
    said = [w for w in trace.warnings if "look corrupt" in w]
    assert len(said) == 1 and "1 of 4 kernels" in said[0] and "'b', 1600000000 ns" in said[0]
    assert "1600015000 ns as recorded and 25000 ns with these cut at the next start" in said[0]


def test_B01_dependent_launches_and_other_streams_are_no_corruption(tmp_path: Path) -> None:
    pairs = [kernel(f"k{i}", 2000 * i, 2100) for i in range(5)]
    beside = [kernel(f"s{i}", 10 * i, 5, stream=8) for i in range(50)]
    trace = read(tmp_path / "x", *pairs, *beside)
    assert len(trace.kernels) == 55 and not any("corrupt" in w for w in trace.warnings)


def test_B03_siblings_that_overlap_by_less_than_a_microsecond_are_both_kept(tmp_path: Path) -> None:
    calls = [call("cudaLaunchKernel", 1.0, 2.4, 1), call("cudaLaunchKernel", 3.0, 2.0, 2)]
    trace = read(tmp_path / "x", *calls, kernel("a", 10, 1, 1), kernel("b", 12, 1, 2))
    assert list(trace.launches["correlation"]) == [1, 2] and len(trace.kernels) == 2


@needs_samples
def test_B05_B53_graph_kernels_keep_their_names_mangled_or_not() -> None:
    trace = read_trace(SAMPLES / "kineto_mi300x_sglang_decode.json.gz")
    inside = trace.kernels[trace.kernels["replay"] == 0]
    assert len(inside) == 544 and inside["name"].nunique() > 10
    norms = inside[
        inside["raw_name"].astype(str).str.startswith("_ZN5aiter") & inside["raw_name"].str.contains("rmsnorm")
    ]
    assert len(norms) > 0 and norms["name"].astype(str).str.contains("aiter::add_rmsnorm_quant_kernel<").all()


def test_B07_graph_launches_without_kernels_are_incomplete(tmp_path: Path) -> None:
    launches = [call("cudaGraphLaunch", 10 * i, 5, i) for i in range(1, 5)]
    trace = read(tmp_path / "x", *launches, kernel("a", 12, 3, 1))
    assert any(
        "3 of 4 graph launches have no kernels in the trace: the recording is incomplete" in w for w in trace.warnings
    )
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 55, "tid": 77, "ts": 1, "dur": 2}
    with pytest.raises(UnreadableTrace, match=r"4 graph launches and no GPU kernel.*DISABLE_CUPTI_LAZY_REINIT=1"):
        read(tmp_path / "y", operator, *launches)


def test_B09_B39_one_launch_owns_many_kernels_and_stays_one_row(tmp_path: Path) -> None:
    rows = [kernel(f"k{i}", 20 + 2 * i, 1, 5) for i in range(9)]
    trace = read(tmp_path / "x", call("cudaGraphLaunch", 1, 4, 5), *rows)
    assert len(trace.launches) == 1 and int(trace.launches["end_ns"].iloc[0]) - 1000 == 4000
    assert list(trace.kernels["replay"]) == [0] * 9


def test_B10_only_gpu_rows(tmp_path: Path) -> None:
    trace = read(tmp_path / "x", kernel("a", 1, 2), kernel("b", 4, 2, 2))
    assert len(trace.kernels) == 2 and len(trace.launches) == 0 and set(trace.kernels["process"]) == {-1}


@pytest.mark.parametrize(("name", "rank"), [("trace.json", 0), ("x-rank-3.json", 3)])
def test_B11_no_rank_in_the_file(tmp_path: Path, name: str, rank: int) -> None:
    assert set(read(tmp_path / name, kernel("a", 1, 2)).kernels["rank"]) == {rank}


def test_B12_metadata_behind_the_events(tmp_path: Path) -> None:
    trace = read(tmp_path / "x", kernel("a", 1, 2), distributedInfo={"rank": 5, "world_size": 8})
    assert set(trace.kernels["rank"]) == {5} and trace.world_size == 8


def test_B14_python_frames_cost_no_memory(tmp_path: Path) -> None:
    frame = {"ph": "X", "cat": "python_function", "name": "model.py(7): forward", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    text = json.dumps({**frame, "args": {"Python id": 7, "Python parent id": 6, "filler": "x" * 600}})
    path = tmp_path / "x"
    with open(path, "w") as file:
        file.write('{"traceEvents": [' + json.dumps(kernel("a", 1, 2)) + "," + ",".join([text] * 40_000) + "]}")
    tracemalloc.start()
    try:
        assert len(read_trace(path).kernels) == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 28e6 and peak < path.stat().st_size


def test_B45_many_ranks_take_no_more_memory_than_one_and_their_tables(tmp_path: Path) -> None:
    frame = {"ph": "X", "cat": "python_function", "name": "model.py(7): forward", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    filler = ("," + json.dumps({**frame, "args": {"Python id": 7, "filler": "x" * 600}})) * 12_000
    files = [tmp_path / f"rank{rank}.json" for rank in range(6)]
    for rank, path in enumerate(files):
        path.write_text('{"traceEvents": [' + json.dumps(kernel("a", 1 + rank, 2)) + filler + "]}")

    def peak(*paths: Path) -> int:
        tracemalloc.start()
        try:
            assert len(import_files(paths).kernels) == len(paths)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(files[0])
    one, all_of_them = peak(files[0]), peak(*files)
    # Six documents together are 53 MB: a merge that held them would show it.
    assert sum(path.stat().st_size for path in files) > 50e6
    assert all_of_them < 1.1 * one + 1e6


def test_B15_another_chrome_trace_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(json.dumps([{"ph": "X", "name": "k", "pid": 0, "tid": 0, "ts": 1, "dur": 2}]))
    with pytest.raises(UnreadableTrace, match=r"1 events and none with a category \(`cat`\)"):
        read_trace(path)


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        (b'"name": "k", "memory bandwidth (GB/s)": inf', "k"),
        (rb'"name": "C:\dir\x.py"', "C:\\dir\\x.py"),
        (b'"name": "a\x01b"', "a\x01b"),
        (b'"name": "a\xc3"', "a�"),
    ],
    ids=["B16", "B19", "B21-control", "B21-utf8"],
)
def test_B16_B19_B21_what_is_not_quite_json(tmp_path: Path, odd: bytes, name: str) -> None:
    path = tmp_path / "x"
    whole = json.dumps({"traceEvents": [kernel("k", 1, 2)]}).encode()
    path.write_bytes(whole.replace(b'"name": "k"', odd))
    assert list(read_trace(path).kernels["name"]) == [name]


def test_B22_absent_graph_ids_are_unknown(tmp_path: Path) -> None:
    rows = read(tmp_path / "x", call("cudaGraphLaunch", 1, 2, 5), kernel("a", 4, 1, 5), kernel("b", 6, 1, 5)).kernels
    assert list(rows["graph"]) == [-1, -1] and list(rows["node"]) == [-1, -1] and list(rows["replay"]) == [0, 0]


def test_B24_replays_of_one_graph_with_unequal_lengths(tmp_path: Path) -> None:
    def node(number: int) -> Json:
        return {"graph id": 2, "graph node id": (2 << 32) + number}

    whole = [kernel(f"k{i}", 10 + 2 * i, 1, 5, **node(i)) for i in range(4)]
    short = [kernel(f"k{i}", 50 + 2 * i, 1, 6, **node(i)) for i in range(2)]
    launches = [call("cudaGraphLaunch", 1, 2, 5), call("cudaGraphLaunch", 40, 2, 6)]
    trace = read(tmp_path / "x", *launches, *whole, *short)
    assert any(
        "1 of 1 graphs have replays of unequal length (the first: 2 to 4 kernels in 2" in w for w in trace.warnings
    )
    assert not any("unequal" in w for w in read(tmp_path / "y", *launches[:1], *whole).warnings)


def test_B26_B46_a_kernel_before_its_launch_keeps_its_time_and_its_launch(tmp_path: Path) -> None:
    trace = read(tmp_path / "x", call("cudaGraphLaunch", 15, 4, 5), kernel("a", 10, 3, 5))
    assert list(trace.kernels["start_ns"]) == [10_000] and list(trace.kernels["replay"]) == [0]
    assert list(trace.launches["start_ns"]) == [15_000]


def test_B29_durations_are_the_files_where_slices_do_not_nest(tmp_path: Path) -> None:
    trace = read(tmp_path / "x", kernel("a", 10, 10), kernel("b", 15, 10, 2))
    assert list(trace.kernels["duration_ns"]) == [10_000, 10_000] and busy(trace) == [15_000]


def nsys(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(
        """CREATE TABLE StringIds (id, value);
        INSERT INTO StringIds VALUES (1, 'k'), (2, 'cudaGraphLaunch_v10000'), (3, 'cudaLaunchKernel_v7000');
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId);"""
        + "".join(statements)
    )
    connection.commit()
    connection.close()
    return path


KERNELS = (
    'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", deviceId, streamId, correlationId, globalPid, '
    "demangledName, graphNodeId);"
)
ONE, TWO = 55 << 24, 56 << 24


def test_B36_a_trace_of_whole_graphs_has_no_kernels(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "x",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, {ONE}, 9, 2);",
        'CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, "end", deviceId, streamId, correlationId, globalPid, '
        "graphId);",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (10, 60, 0, 7, 9, {ONE}, 4);",
    )
    trace = read_trace(path)
    assert trace.graph_mode and len(trace.kernels) == 0 and list(trace.timings["duration_ns"]) == [50]


def test_B40_equal_correlation_ids_of_two_processes(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "x",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, {ONE}, 9, 2), (3, 4, {TWO}, 9, 3);",
        KERNELS,
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, 0, 7, 9, {ONE}, 1, NULL);",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (11, 14, 1, 7, 9, {TWO}, 1, NULL);",
    )
    rows = read_trace(path).kernels
    assert list(rows["rank"]) == [0, 1] and list(rows["replay"]) == [0, -1]


def test_B41_no_kernels_says_from_how_many_processes(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "x",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, {ONE}, 9, 3), (3, 4, {TWO}, 9, 3);",
    )
    with pytest.raises(UnreadableTrace, match=r"0 kernels from 2 processes.*--trace-fork-before-exec=true"):
        read_trace(path)


def test_B43_two_documents_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    one = json.dumps({"traceEvents": [kernel("a", 1, 2), kernel("b", 4, 2, 2)]})
    path.write_text(one + one)
    with pytest.raises(UnreadableTrace, match="as when two processes wrote one path"):
        read_trace(path)
    path.write_text(one[: len(one) // 2] + one)
    with pytest.raises(UnreadableTrace, match=r"\(at byte \d+\)"):
        read_trace(path)


def test_B47_a_leftover_file_can_be_told_by_its_age_and_content(tmp_path: Path) -> None:
    import os

    from fusionscope.profiler.imported import run_info

    path = tmp_path / "x.json"
    trace = read(path, kernel("a", 1, 2))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    found = run_info([path], trace).inputs[0]
    assert found.modified == "2023-11-14T22:13:20+00:00" and len(found.sha256) == 64


@needs_samples
@pytest.mark.parametrize("name", ["kineto_mi300x_vllm_decode_full_graph.json.gz", "nsys2026_2gpu_before.sqlite"])
def test_B52_a_file_that_does_not_name_its_gpu(name: str) -> None:
    trace = import_files([SAMPLES / name])
    assert "gpu" not in trace.machine and "The file does not name its GPU." in trace.warnings


@needs_samples
def test_B55_one_forward_can_be_many_graph_launches() -> None:
    trace = read_trace(SAMPLES / "kineto_mi300x_vllm_piecewise.json.gz")
    sizes = trace.kernels[trace.kernels["replay"] >= 0].groupby("replay").size()
    assert len(sizes) == 25 and sizes.value_counts().to_dict() == {15: 23, 4: 1, 12: 1}
    assert oracle("kineto_mi300x_vllm_piecewise.json.gz")["kernels_in_graphs"] == int(sizes.sum())

"""Kineto traces: the samples against their oracle, and small traces with one oddity each."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from oracle import SAMPLES, needs_samples, oracle

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.kineto import read
from fusionscope.profiler.trace import KERNELS, Trace

WHOLE = [
    "kineto_b200_eager_tp8.json.gz",
    "kineto_mi300x_sglang_decode.json.gz",
    "kineto_mi300x_vllm_decode_full_graph.json.gz",
    "kineto_mi300x_vllm_piecewise.json.gz",
    "kineto_v100_graphs_rank1of2.json.gz",
    "kineto_4ranks_nccl.json.gz",
]
# The oracle's starts leave this out.
BASES = dict(zip(WHOLE, [1767189312, 1775078550, 1767189312, 1767189312, 0, 0], strict=True))


def per_replay(trace: Trace) -> dict[str, int]:
    rows = trace.kernels[(trace.kernels["replay"] >= 0) & (trace.kernels["kind"] == "kernel")]
    sizes = rows.groupby("replay").size().value_counts()
    return {str(launches): int(replays) for launches, replays in sizes.items()}


@needs_samples
@pytest.mark.parametrize("name", WHOLE)
def test_samples(name: str) -> None:
    trace, want = read(SAMPLES / name), oracle(name)
    kernels = trace.kernels[trace.kernels["kind"] == "kernel"]
    base = BASES[name] * 10**9
    assert len(kernels) == want["kernels"]
    assert int(kernels["duration_ns"].sum()) == want["sum_ns"]
    assert int(kernels["start_ns"].min()) - base == want["first_ns"]
    assert int((kernels["start_ns"] + kernels["duration_ns"]).max()) - base == want["last_ns"]
    assert kernels["raw_name"].nunique() == want["distinct_names"]
    assert kernels["duration_ns"].median() == want["median_ns"]
    assert kernels[["device", "stream"]].drop_duplicates().shape[0] == want["streams"]
    # Device ids of the merged file are 2 to 5; its process ids, by which the oracle counts, were made unique.
    assert kernels["device"].nunique() == len(want["union_ns_per_device"])
    assert int(trace.launches["is_graph"].sum()) == want["graph_launches"]
    assert int((kernels["replay"] >= 0).sum()) == want["kernels_in_graphs"]
    assert per_replay(trace) == want["kernels_per_launch"]
    assert trace.machine.get("gpu", "") == (want["gpu"] or "")
    assert ("The file does not name its GPU." in trace.warnings) == (not want["gpu"])
    if told := want["distributedInfo"]:
        assert set(kernels["rank"]) == {told["rank"]}
        assert trace.world_size == told["world_size"]
    assert {c: str(trace.kernels[c].dtype) for c in KERNELS} == KERNELS


@needs_samples
def test_four_ranks_in_one_file() -> None:
    kernels = read(SAMPLES / "kineto_4ranks_nccl.json.gz").kernels
    assert dict(kernels.groupby("rank").size()) == {0: 21, 1: 21, 2: 21, 3: 21}


@needs_samples
@pytest.mark.parametrize(
    ("name", "rank", "launches"),
    [
        ("h200_ar_norm/split.kineto.json.gz", 0, {"225": 12}),
        ("h200_tp2_skew/tp2_rank0.kineto.json.gz", 0, {"132": 8}),
        ("h200_tp2_skew/tp2_rank1.kineto.json.gz", 1, {"156": 8}),
    ],
)
def test_own_samples(name: str, rank: int, launches: dict[str, int]) -> None:
    trace, want = read(SAMPLES / name), oracle(name)
    assert len(trace.kernels) == want["kernels"]
    assert int(trace.kernels["duration_ns"].sum()) == want["sum_ns"]
    assert set(trace.kernels["rank"]) == {rank}
    assert per_replay(trace) == launches
    assert set(trace.kernels["process"]) == set(trace.launches["process"])
    assert trace.world_size == want.get("world_size", 0)


# Small traces: written as text, since the exact digits are the point.

KERNEL = (
    '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5109432595769.991, "dur": 6.295, '
    '"args": {"device": 0, "stream": 7, "correlation": 3}}'
)


def event(**fields: Any) -> str:
    return json.dumps({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, **fields})


def read_text(tmp_path: Path, text: str | bytes, name: str = "t.json") -> Trace:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path)


def test_decimals_are_exact_and_the_base_is_added(tmp_path: Path) -> None:
    trace = read_text(tmp_path, f'{{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [{KERNEL}]}}')
    assert list(trace.kernels["start_ns"]) == [1790857026000000000 + 5109432595769991]
    assert list(trace.kernels["duration_ns"]) == [6295]


def test_a_base_after_the_events_counts_too(tmp_path: Path) -> None:
    trace = read_text(
        tmp_path,
        f'{{"traceEvents": [{KERNEL},], "distributedInfo": {{"rank": 3, "world_size": 8}}, "baseTimeNanoseconds": 9}}',
    )
    assert list(trace.kernels["start_ns"]) == [9 + 5109432595769991]
    assert list(trace.kernels["rank"]) == [3]
    assert trace.world_size == 8


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("dp0_pp0_tp3_dcp0_ep0_rank5.1699.pt.trace.json", 5),
        ("1699-TP-2-DECODE.trace.json", 2),
        ("run-rank-4.json", 4),
        ("b200_eager_tp8.json", 0),
    ],
)
def test_a_bare_list_takes_its_rank_from_the_name(tmp_path: Path, name: str, rank: int) -> None:
    assert list(read_text(tmp_path, f"\ufeff [{KERNEL}]\n", name).kernels["rank"]) == [rank]


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        (rb'"name": "C:\dir\x.py"', "C:\\dir\\x.py"),
        (rb'"name": "C:\\users \u12"', "C:\\users \\u12"),
        (b'"name": "a\x01b"', "a\x01b"),
        (b'"name": "a\xc3"', "a\ufffd"),
        (rb'"name": "a\"} ]{b"', 'a"} ]{b'),
        (b'"memory bandwidth (GB/s)": inf, "name": "inf nan"', "inf nan"),
        (b'"x": -Infinity, "y": NaN, "z": nan, "name": "k"', "k"),
    ],
)
def test_what_is_not_quite_json(tmp_path: Path, odd: bytes, name: str) -> None:
    text = b'{"traceEvents": [%s, %s]}' % (KERNEL.replace('"name": "k"', "ODD").encode().replace(b"ODD", odd), b"{}")
    trace = read_text(tmp_path, text)
    assert list(trace.kernels["name"]) == [name]
    assert list(trace.kernels["start_ns"]) == [5109432595769991]


def test_odd_metadata(tmp_path: Path) -> None:
    head = rb'{"traceName": "C:\tmp\d.json", "x": [[], {"y": inf}], "traceEvents": ['
    trace = read_text(tmp_path, head + KERNEL.encode() + b"]}")
    assert len(trace.kernels) == 1


def test_old_names_of_categories_and_devices(tmp_path: Path) -> None:
    events = [
        event(cat="Kernel", tid="stream 7", pid=2),
        event(cat="Memcpy", name="copy", ts=5),
        event(cat="Memset", name="set", ts=6),
        event(cat="Runtime", name="cudaLaunchKernel", pid=99, tid=98, args={"correlation": 4}),
        event(cat="Operator", name="aten::mm"),
        event(cat="gpu_user_annotation", name="no kernel"),
    ]
    trace = read_text(tmp_path, f"[{', '.join(events)}]")
    assert list(trace.kernels["kind"]) == ["kernel", "memcpy", "memset"]
    assert (trace.kernels["stream"][0], trace.kernels["device"][0], trace.kernels["process"][0]) == (7, 2, 99)


def test_graph_node_ids(tmp_path: Path) -> None:
    args = {"correlation": 5, "graph id": 2, "graph node id": (2 << 32) + 11}
    events = [
        event(args=args),
        event(args={"correlation": 6, "graph id": 0, "graph node id": 0}, ts=2),
        event(cat="cuda_runtime", name="cudaGraphLaunch", args={"correlation": 5}, pid=1),
    ]
    kernels = read_text(tmp_path, f"[{', '.join(events)}]").kernels
    assert list(kernels["graph"]) == [2, -1]
    assert list(kernels["node"]) == [11, -1]
    assert list(kernels["replay"]) == [0, -1]


def test_hip_graphs_have_replays_without_nodes_and_clean_names(tmp_path: Path) -> None:
    events = [
        event(name="_Z4rms.kd", args={"correlation": 8, "kind": "Dispatch Task"}),
        event(name="gemm [clone .kd]", ts=3, args={"correlation": 8, "kind": "Dispatch Task"}),
        event(name="eager", ts=5, args={"correlation": 9, "kind": "Dispatch Kernel"}),
        event(cat="cuda_runtime", name="hipGraphLaunch", pid=1, args={"cid": 1, "correlation": 8}),
        event(cat="cuda_runtime", name="hipModuleLaunchKernel", pid=1, args={"cid": 1, "correlation": 9}),
        event(cat="cuda_runtime", name="cudaLaunchHostFunc", pid=1, args={"correlation": 10}),
    ]
    trace = read_text(tmp_path, f"[{', '.join(events)}]")
    assert list(trace.kernels["replay"]) == [0, 0, -1]
    assert set(trace.kernels["node"]) == {-1}
    assert list(trace.kernels["name"]) == ["_Z4rms", "gemm", "eager"]
    assert list(trace.kernels["raw_name"]) == ["_Z4rms.kd", "gemm [clone .kd]", "eager"]
    assert list(trace.launches["name"]) == ["hipGraphLaunch", "hipModuleLaunchKernel"]


def test_merged_file_with_labelled_processes(tmp_path: Path) -> None:
    """SGLang's merge keeps correlation ids as they were: the same id is another launch in another rank."""
    events = [
        event(pid=f"[TP0{rank}] 0", ts=start, args={"device": 0, "stream": 7, "correlation": 5})
        for rank, start in ((1, 20), (0, 30))
    ]
    events += [
        event(cat="cuda_runtime", name="cudaGraphLaunch", pid=f"[TP0{rank}] 8{rank}", args={"correlation": 5})
        for rank in (1, 0)
    ]
    trace = read_text(tmp_path, f"[{', '.join(events)}]")
    assert list(trace.kernels["rank"]) == [0, 1]
    assert list(trace.kernels["start_ns"]) == [30000, 20000]
    assert list(trace.kernels["process"]) == [80, 81]
    assert list(trace.kernels["replay"]) == [0, 0]
    assert "rank 0 is TP00, rank 1 is TP01" in trace.warnings[0]


def test_events_without_a_readable_time_are_counted(tmp_path: Path) -> None:
    trace = read_text(tmp_path, f"[{KERNEL}, {event(ts='soon')}, {event(ts=4, dur=None)}]")
    assert list(trace.kernels["untimed"]) == [True, False]
    assert trace.warnings[0].startswith("1 of 3 events have no readable time")


# The CPU


def cpu(name: str, start: float, duration: float, thread: int = 1, cat: str = "cpu_op") -> str:
    return event(cat=cat, name=name, ts=start, dur=duration, pid=10, tid=thread)


def test_leaf_operators_are_the_launches_of_a_cpu(tmp_path: Path) -> None:
    events = [
        cpu("aten::linear", 0, 50),
        cpu("fusionscope.site|mhc_post|attn_exit|0|split", 5, 40, cat="user_annotation"),
        cpu("aten::addmm", 10, 30),
        cpu("aten::add", 60, 5.5),
        cpu("aten::other_thread", 12, 4, thread=2),
        cpu("TorchDynamo Cache Lookup", 70, 5),
        cpu("torch/nn/module.py(1): call", 0, 90, cat="python_function"),
    ]
    trace = read_text(tmp_path, f"[{', '.join(events)}]")
    assert list(trace.kernels["name"]) == ["aten::addmm", "aten::other_thread", "aten::add"]
    assert list(trace.kernels["duration_ns"]) == [30000, 4000, 5500]
    assert set(trace.kernels["kind"]) == {"op"} and set(trace.kernels["device"]) == {0}
    assert list(trace.kernels["thread"]) == list(trace.kernels["stream"]) == [1, 2, 1]
    assert set(trace.kernels["process"]) == {10}


def test_only_what_lies_in_a_forward_counts(tmp_path: Path) -> None:
    events = [
        cpu("aten::warm_up", 0, 5),
        cpu("fusionscope.forward", 10, 20, cat="user_annotation"),
        cpu("aten::inside", 12, 5),
        cpu("aten::between", 31, 5),
        cpu("fusionscope.forward", 40, 20, cat="user_annotation"),
        cpu("aten::inside", 42, 5),
    ]
    trace = read_text(tmp_path, f"[{', '.join(events)}]")
    assert list(trace.kernels["name"]) == ["aten::inside", "aten::inside"]
    assert len(trace.ranges) == 2


@pytest.mark.parametrize("done_as", ["user_annotation", "cpu_op"])
def test_a_gloo_collective_is_one_launch_from_issue_to_completion(tmp_path: Path, done_as: str) -> None:
    events = [
        cpu("fusionscope.forward", 0, 100, cat="user_annotation"),
        cpu("c10d::allreduce_", 10, 5),
        cpu("aten::empty", 11, 1),
        cpu("gloo:all_reduce", 13, 20, thread=2, cat=done_as),
        cpu("aten::copy_", 14, 2, thread=2),
        cpu("aten::add", 40, 3),
        cpu("c10d::_allgather_base_", 50, 4),
        cpu("gloo:all_gather", 52, 8, thread=3, cat=done_as),
        cpu("c10d::allreduce_", 70, 4),
    ]
    rows = read_text(tmp_path, f"[{', '.join(events)}]").kernels
    assert list(rows["name"]) == ["gloo:all_reduce", "aten::add", "gloo:all_gather", "c10d::allreduce_"]
    assert list(rows["raw_name"]) == ["c10d::allreduce_", "aten::add", "c10d::_allgather_base_", "c10d::allreduce_"]
    assert list(rows["start_ns"]) == [10000, 40000, 50000, 70000]
    # The last one's completion was not recorded: it keeps the time of its issue.
    assert list(rows["duration_ns"]) == [23000, 3000, 10000, 4000]
    assert set(rows["thread"]) == {1}


# What cannot be read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'{{"traceEvents": [{KERNEL}', r"ends in the middle.*at byte \d+"),
        (f'{{"traceEvents": [{KERNEL[:60]}', "ends in the middle of a value"),
        (f"[{KERNEL}][{KERNEL}]", "two processes wrote one path"),
        (f"[{KERNEL} {KERNEL}]", "where b'\\]' belongs"),
        ('[{"ph": "X", "name": "no category"}]', "none with a category"),
        ('{"rows": [1, 2]}', "none with a category"),
        (f"[{event(cat='python_function')}]", "no GPU kernel and no CPU operator"),
        ("[" * 200, "nests too deeply"),
        ('{"traceEvents": [{"cat": tru}]}', "no JSON"),
    ],
)
def test_broken_documents_say_where(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UnreadableTrace, match=says):
        read_text(tmp_path, text)


def test_truncated_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(f"[{', '.join([KERNEL] * 500)}]".encode())
    assert len(read_text(tmp_path, whole, "whole.json").kernels) == 500
    with pytest.raises(UnreadableTrace, match="cannot be read to its end"):
        read_text(tmp_path, whole[:-20], "t.json.gz")

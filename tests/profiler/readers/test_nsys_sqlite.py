"""Nsight exports: the samples against their oracle, and small exports with one oddity each."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from oracle import SAMPLES, needs_samples, oracle

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.nsys_sqlite import read
from fusionscope.profiler.trace import KERNELS, Trace

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


def union_ns(trace: Trace) -> dict[str, int]:
    """Length of the union of intervals per device, by the plainest loop."""
    found: dict[str, int] = {}
    ends: dict[str, int] = {}
    rows = trace.kernels[trace.kernels["kind"] == "kernel"].sort_values("start_ns")
    for device, start, duration in zip(rows["device"], rows["start_ns"], rows["duration_ns"], strict=True):
        key, end = str(device), int(start + duration)
        found[key] = found.get(key, 0) + max(0, end - max(int(start), ends.get(key, 0)))
        ends[key] = max(ends.get(key, 0), end)
    return found


def per_replay(trace: Trace, rank: int) -> list[int]:
    rows = trace.kernels[(trace.kernels["replay"] >= 0) & (trace.kernels["rank"] == rank)]
    return [int(n) for n in rows.groupby("replay").size()]


@needs_samples
@pytest.mark.parametrize("name", ["nsys2026_2gpu_before.sqlite", "nsys2026_2gpu_after.sqlite"])
def test_eager_two_gpu_samples(name: str) -> None:
    trace, want = read(SAMPLES / name), oracle(name)
    kernels = trace.kernels[trace.kernels["kind"] == "kernel"]
    assert len(kernels) == want["kernels"]
    assert int(kernels["duration_ns"].sum()) == want["sum_ns"]
    assert union_ns(trace) == want["union_ns_per_device"]
    assert int(kernels["start_ns"].min()) == want["first_ns"]
    assert int((kernels["start_ns"] + kernels["duration_ns"]).max()) == want["last_ns"]
    assert kernels["name"].nunique() == want["distinct_names"]
    assert set(kernels["replay"]) == set(kernels["node"]) == set(kernels["graph"]) == {-1}
    # The export says MODE=Graph, as by default, yet no graph was launched: every kernel is here.
    assert not trace.graph_mode
    assert dict(kernels.groupby("rank")["device"].unique().map(list)) == {0: [0], 1: [1]}
    assert "rank 0 is process" in trace.warnings[0]
    assert "gpu" not in trace.machine
    assert "does not name its GPU" in " ".join(trace.warnings)
    top = {row["name"]: row for row in want["top5"]}
    cut = kernels["name"].astype("object").str[: max(map(len, top))]
    for text, row in top.items():
        same = kernels[cut.str.startswith(text)]
        assert len(same) >= row["count"]


@needs_samples
@pytest.mark.parametrize("name", ["split", "fused"])
def test_h200_graph_replays(name: str) -> None:
    key = f"h200_ar_norm/{name}.nsys.sqlite"
    trace, want = read(SAMPLES / key), oracle(key)
    assert len(trace.kernels) == want["kernels"]
    assert int(trace.kernels["duration_ns"].sum()) == want["sum_ns"]
    assert per_replay(trace, 0) == want["kernels_per_replay"] * want["replays"]
    assert {c: str(trace.kernels[c].dtype) for c in KERNELS} == KERNELS
    by_replay = trace.kernels.groupby("replay")
    assert by_replay["duration_ns"].sum().median() == want["median_replay_kernel_sum_ns"]
    ends = (trace.kernels["start_ns"] + trace.kernels["duration_ns"]).groupby(trace.kernels["replay"]).max()
    assert (ends - by_replay["start_ns"].min()).median() == want["median_replay_span_ns"]
    # Each node once per replay, as ordinals from 0 in one executable graph.
    assert sorted(by_replay.get_group(0)["node"]) == list(range(want["kernels_per_replay"][0]))
    assert set(trace.kernels["graph"]) == {2}
    assert list(trace.ranges["name"].unique()) == ["decode_step"] and len(trace.ranges) == 12
    assert list(trace.launches["name"].unique()) == ["cudaGraphLaunch"]
    assert trace.machine == {"gpu": "NVIDIA H200", "profiler": "Nsight Systems 2025.3.2.0"}
    assert not trace.warnings and not trace.graph_mode and trace.timings.empty


@needs_samples
def test_two_ranks_of_unequal_length() -> None:
    trace, want = read(SAMPLES / "h200_tp2_skew/tp2.nsys.sqlite"), oracle("h200_tp2_skew/tp2.nsys.sqlite")
    assert len(trace.kernels[trace.kernels["kind"] == "kernel"]) == want["kernels"]
    assert int(trace.kernels["duration_ns"].sum()) == want["sum_ns"]
    for rank, launches in want["kernels_per_replay"].items():
        assert per_replay(trace, int(rank)) == [launches] * want["replays_per_rank"]
    reduced = trace.kernels[trace.kernels["name"].astype(str).str.contains("AllReduce.*bf16", regex=True)]
    sums = reduced.groupby("rank")["duration_ns"].sum()
    assert {str(r): int(n) for r, n in sums.items()} == want["all_reduce_bf16"]["sum_ns"]


@needs_samples
def test_equal_correlations_in_two_processes(tmp_path: Path) -> None:
    plain = tmp_path / "node.sqlite"
    plain.write_bytes(gzip.decompress((SAMPLES / "synthetic_nsys_2gpu_node.sqlite.gz").read_bytes()))
    trace, want = read(plain), oracle("synthetic_nsys_2gpu_node.sqlite.gz")
    assert len(trace.kernels) == want["kernels"]
    assert int(trace.kernels["duration_ns"].sum()) == want["sum_ns"]
    assert trace.kernels["process"].nunique() == want["processes"]
    for rank in (0, 1):
        assert per_replay(trace, rank) == [want["kernels_per_replay"]] * want["replays_per_process"]


@needs_samples
def test_graph_mode_sample() -> None:
    trace = read(SAMPLES / "synthetic_nsys_2gpu_graph_mode.sqlite")
    assert trace.graph_mode
    assert len(trace.kernels) == 0
    assert len(trace.timings) == oracle("synthetic_nsys_2gpu_graph_mode.sqlite")["graph_trace_rows"]
    assert set(trace.timings["duration_ns"]) == {9944702 - 14066}
    assert set(trace.timings["source"]) == {"graph-level trace"}
    assert list(trace.timings["rank"]) == [0, 0, 0, 1, 1, 1]


# Small exports


def gid(pid: int, tid: int = 0) -> int:
    return 1 << 52 | pid << 24 | tid


class Export:
    """An Nsight export in the making; the columns are those that every schema generation has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path)
        self.db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        self.db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        self.strings: dict[str, int] = {}

    def text(self, value: str) -> int:
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 1
            self.db.execute("INSERT INTO StringIds VALUES (?, ?)", (self.strings[value], value))
        return self.strings[value]

    def rows(self, name: str, columns: str, rows: list[tuple[Any, ...]]) -> Export:
        names = ", ".join(f'"{column}"' for column in columns.split())
        self.db.execute(f"CREATE TABLE {name} ({names})")
        self.db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns.split()))})", rows)
        return self

    def kernels(self, *rows: tuple[Any, ...], more: str = "graphNodeId") -> Export:
        columns = f"start end deviceId streamId correlationId globalPid demangledName {more}"
        return self.rows(KERNEL, columns, [(*row[:6], self.text(row[6]), *row[7:]) for row in rows])

    def calls(self, *rows: tuple[int, int, int, int, str]) -> Export:
        return self.rows(RUNTIME, "start end globalTid correlationId nameId", [(*r[:4], self.text(r[4])) for r in rows])

    def read(self) -> Trace:
        self.db.commit()
        self.db.close()
        return read(self.path)


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "small.sqlite")


NODE = 7 << 32


def test_replays_are_numbered_by_the_start_of_their_launch(export: Export) -> None:
    export.kernels(
        (100, 110, 0, 7, 9, gid(5), "a", NODE | 0),
        (110, 115, 0, 7, 9, gid(5), "b", NODE | 1),
        (300, 310, 0, 7, 4, gid(5), "a", NODE | 0),
        (400, 401, 0, 7, 5, gid(5), "eager", None),
        (402, 403, 0, 7, 6, gid(5), "zero", 0),
    ).calls(
        # The order of correlation ids is not the order of launches.
        (250, 260, gid(5, 6), 4, "cudaGraphLaunch_v10000"),
        (50, 60, gid(5, 6), 9, "cudaGraphLaunch_v10000"),
        (390, 395, gid(5, 6), 5, "cudaLaunchKernel_v7000"),
        (396, 397, gid(5, 6), 7, "cudaStreamSynchronize_v3020"),
    )
    trace = export.read()
    assert list(trace.kernels["replay"]) == [0, 0, 1, -1, -1]
    assert list(trace.kernels["node"]) == [0, 1, 0, -1, -1]
    assert list(trace.kernels["graph"]) == [7, 7, 7, -1, -1]
    assert list(trace.launches["name"]) == ["cudaGraphLaunch", "cudaGraphLaunch", "cudaLaunchKernel"]
    assert list(trace.launches["thread"]) == [6, 6, 6]
    assert list(trace.launches["process"]) == [5, 5, 5]


def test_without_runtime_rows_the_first_kernel_starts_a_replay(export: Export) -> None:
    export.kernels(
        (300, 310, 0, 7, 4, gid(5), "a", NODE | 1),
        (100, 110, 0, 7, 9, gid(5), "a", NODE | 1),
        (111, 112, 0, 7, 9, gid(5), "b", NODE | 2),
    )
    assert list(export.read().kernels["replay"]) == [0, 0, 1]


def test_a_launch_without_kernels_is_said(export: Export) -> None:
    export.kernels((100, 110, 0, 7, 9, gid(5), "a", NODE | 1)).calls(
        (50, 60, gid(5), 9, "cuGraphLaunch"), (70, 80, gid(5), 10, "cuGraphLaunch")
    )
    trace = export.read()
    assert any(text.startswith("1 of 2 graph launches have no kernels") for text in trace.warnings)


def test_a_schema_from_before_graph_nodes(export: Export) -> None:
    export.kernels((100, 110, 0, 7, 9, gid(5), "a"), more="")
    trace = export.read()
    assert list(trace.kernels["node"]) == [-1] and list(trace.kernels["replay"]) == [-1]


def test_node_ids_keep_all_their_bits_beside_nulls(export: Export) -> None:
    big = (2**22 + 1) << 32 | 0xFFFFFFF1
    export.kernels((1, 2, 0, 7, 1, gid(5), "eager", None), (3, 4, 0, 7, 2, gid(5), "a", big))
    trace = export.read()
    assert list(trace.kernels["node"]) == [-1, 0xFFFFFFF1]
    assert list(trace.kernels["graph"]) == [-1, 2**22 + 1]


def test_one_process_with_two_devices_is_two_ranks(export: Export) -> None:
    export.kernels((1, 2, 1, 7, 1, gid(5), "a", None), (3, 4, 0, 7, 2, gid(5), "b", None)).calls(
        (0, 1, gid(5), 1, "cudaLaunchKernel"), (2, 3, gid(5), 2, "cudaLaunchKernel")
    )
    trace = export.read()
    assert list(trace.kernels["rank"]) == [0, 1] and list(trace.kernels["device"]) == [0, 1]
    assert list(trace.launches["correlation"]) == [2, 1]
    assert trace.warnings[0].endswith("rank 0 is process 5 on device 0, rank 1 is process 5 on device 1.")


def test_ids_that_read_as_negative(export: Export) -> None:
    export.kernels((1, 2, 0, 7, 1, gid(5) - 2**63, "a", None)).calls((0, 1, gid(5, 9) - 2**63, 1, "cudaLaunchKernel"))
    trace = export.read()
    assert list(trace.kernels["process"]) == [5]
    assert list(trace.launches["thread"]) == [9]


def test_copies_and_memsets_are_rows_but_no_launches(export: Export) -> None:
    export.kernels((1, 2, 0, 7, 1, gid(5), "a", None))
    columns = "start end deviceId streamId correlationId globalPid graphNodeId copyKind"
    export.rows("CUPTI_ACTIVITY_KIND_MEMCPY", columns, [(3, 5, 0, 7, 2, gid(5), NODE | 4, 2)])
    export.rows("CUPTI_ACTIVITY_KIND_MEMSET", columns[:-9], [(6, 7, 0, 7, 3, gid(5), None)])
    trace = export.read()
    assert list(trace.kernels["kind"]) == ["kernel", "memcpy", "memset"]
    assert list(trace.kernels["name"]) == ["a", "Memcpy DtoH", "Memset"]
    assert list(trace.kernels["node"]) == [-1, 4, -1]


def test_ranges_with_names_of_both_sorts(export: Export) -> None:
    export.kernels((1, 2, 0, 7, 1, gid(5), "a", None))
    export.rows(
        "NVTX_EVENTS",
        "start end eventType text textId globalTid",
        [
            (5, 9, 59, None, export.text("by id"), gid(5, 6)),
            (1, 20, 60, "by text", None, gid(5, 6)),
            (2, None, 34, "mark", None, gid(5, 6)),
            (3, None, 59, "never closed", None, gid(5, 6)),
            (4, 6, 59, "no GPU work here", None, gid(8, 6)),
        ],
    )
    trace = export.read()
    assert list(trace.ranges["name"]) == ["by text", "by id"]
    assert list(trace.ranges["end_ns"]) == [20, 9]


def test_untimed_records_are_flagged(export: Export) -> None:
    export.kernels((0, 0, 0, 7, 1, gid(5), "lost", NODE | 1), (3, 4, 0, 7, 1, gid(5), "a", NODE | 2))
    trace = export.read()
    assert list(trace.kernels["untimed"]) == [True, False]
    assert trace.warnings[0] == "1 of 2 GPU records have no time: Nsight did not collect it."


def test_graph_mode_leaves_out_untimed_replays(export: Export) -> None:
    columns = "start end deviceId streamId correlationId globalPid graphId graphExecId"
    rows = [(50, 90, 0, 7, 2, gid(5), 1, 2), (0, 0, 0, 7, 3, gid(5), 1, 2), (10, 30, 0, 7, 1, gid(5), 1, 2)]
    export.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns, rows)
    trace = export.read()
    assert trace.graph_mode
    assert list(trace.timings["duration_ns"]) == [20, 40]
    assert any(text.startswith("1 of 3 graph replays have no time") for text in trace.warnings)


def test_broken_utf8_in_a_name_is_kept_readable(export: Export) -> None:
    export.kernels((1, 2, 0, 7, 1, gid(5), "a", None))
    export.db.execute("UPDATE StringIds SET value = CAST(X'61c3' AS TEXT)")
    assert list(export.read().kernels["name"]) == ["a\ufffd"]


def test_a_path_with_characters_of_a_uri(tmp_path: Path) -> None:
    export = Export(tmp_path / "what?mode=rw#1 %20.sqlite")
    export.kernels((1, 2, 0, 7, 1, gid(5), "a", None))
    assert len(export.read().kernels) == 1


def test_a_file_per_rank_takes_the_rank_from_its_name(tmp_path: Path) -> None:
    export = Export(tmp_path / "run_rank3.sqlite")
    export.kernels((1, 2, 0, 7, 1, gid(5), "a", None)).calls((0, 1, gid(5), 1, "cudaLaunchKernel"))
    trace = export.read()
    assert list(trace.kernels["rank"]) == [3] and list(trace.launches["rank"]) == [3]


def test_no_kernels_at_all_says_from_how_many_processes(export: Export) -> None:
    export.calls((0, 1, gid(5), 1, "cudaLaunchKernel"), (0, 1, gid(6), 1, "cudaLaunchKernel"))
    with pytest.raises(UnreadableTrace, match=r"0 kernels from 2 processes.*--trace-fork-before-exec"):
        export.read()


def test_another_sqlite_file(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE rocpd_op (id INTEGER)")
    db.commit()
    db.close()
    with pytest.raises(UnreadableTrace, match=r"no Nsight Systems export.*rocpd_op"):
        read(tmp_path / "other.db")


def test_a_missing_column_is_named(export: Export) -> None:
    export.rows(KERNEL, "start end deviceId", [(1, 2, 0)])
    with pytest.raises(UnreadableTrace, match="no column streamId, correlationId, globalPid"):
        export.read()

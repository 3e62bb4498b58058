"""Perfetto traces, built from packets as rocprofv3 and others write them."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from perfetto_file import BEGIN, END, PROCESS, STREAM, THREAD, Recording, rocprofv3

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import perfetto_packets, read_trace
from fusionscope.profiler.readers.perfetto_packets import Packets, is_perfetto


def test_rocprofv3(tmp_path: Path) -> None:
    trace = read_trace(rocprofv3().write(tmp_path / "any.name"))
    rows = trace.kernels
    assert list(rows["name"]) == ["a", "b", "gemm(int)"] and list(rows["raw_name"])[2] == "_Z4gemmi.kd"
    assert list(rows["start_ns"]) == [20, 25, 63855948165371] and list(rows["duration_ns"]) == [5, 1, 1]
    assert list(rows["replay"]) == [0, 0, -1] and set(rows["kind"]) == {"kernel"}
    assert set(rows["device"]) == {4} and set(rows["stream"]) == {2} and set(rows["process"]) == {55}
    assert list(trace.launches["name"]) == ["hipLaunchKernel", "hipGraphLaunch"]
    assert set(trace.launches["thread"]) == {77}
    assert list(trace.ranges["name"]) == ["decode step"]
    assert any("durations are less trusted" in w for w in trace.warnings)


def test_B30_overlapping_kernels_were_adjusted_and_are_never_negative(tmp_path: Path) -> None:
    # In truth the first ran from 100 to 180 and the second from 140 to 220: rocprofv3 lets them meet at 160.
    recording = Recording()
    recording.track(PROCESS, pid=55)
    recording.track(STREAM, PROCESS)
    recording.dispatch("a", 100, 160, 1)
    recording.dispatch("b", 160, 220, 2)
    recording.slice("kernel_dispatch", "c", 230, 240, begin_ns=2**63, end_ns=1, corr_id=3, agent=4, stream_ID=2)
    trace = read_trace(recording.write(tmp_path / "x"))
    assert list(trace.kernels["duration_ns"]) == [60, 60, 10]
    true = tmp_path / "1_kernel_trace.csv"
    true.write_text(
        "Agent_Id,Queue_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp\n4,2,a,1,100,180\n4,2,b,2,140,220\n"
    )
    assert list(read_trace(true).kernels["duration_ns"]) == [80, 80]
    assert any("import its CSV, JSON or database instead" in w for w in trace.warnings)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_packets_lie_anywhere_between_the_pieces_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    recording = rocprofv3()
    # A length of two bytes.
    recording.dispatch("long " * 60, 30, 31, 9)
    path = recording.write(tmp_path / "x")
    whole = read_trace(path)
    monkeypatch.setattr(perfetto_packets, "_CHUNK", chunk)
    pieces = read_trace(path)
    assert pieces.kernels.equals(whole.kernels) and pieces.launches.equals(whole.launches) and len(whole.kernels) == 4
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    with pytest.raises(UnreadableTrace, match="ends in the middle of a packet"):
        read_trace(path)


def test_pieces_may_be_shorter_than_asked_for(tmp_path: Path) -> None:
    whole = rocprofv3().write(tmp_path / "x").read_bytes()
    # The first piece ends with a packet, and the next one is longer.
    first = whole.index(b"\n", 2)
    pieces = iter([whole[:first], whole[first:], b""])
    packets = Packets(SimpleNamespace(read=lambda size: next(pieces)), tmp_path)  # type: ignore[arg-type]
    assert len(list(packets)) == len(rocprofv3().trace.packet)


def test_torch_profilers_categories(tmp_path: Path) -> None:
    recording = Recording()
    node = {"graph id": 3, "graph node id": (3 << 32) + 5}
    recording.slice("kernel", "k", 10, 20, device=1, stream=7, correlation=9, **node)
    recording.slice("gpu_memcpy", "Memcpy DtoD", 20, 21, device=1, stream=7, correlation=10)
    recording.slice("cuda_runtime", "cudaGraphLaunch", 1, 2, THREAD, correlation=9)
    trace = read_trace(recording.write(tmp_path / "x"))
    assert list(trace.kernels["kind"]) == ["kernel", "memcpy"]
    assert list(trace.kernels["graph"]) == [3, -1] and list(trace.kernels["node"]) == [5, -1]
    assert list(trace.kernels["replay"]) == [0, -1]
    assert not any("less trusted" in w for w in trace.warnings)


def test_render_stages(tmp_path: Path) -> None:
    recording = Recording()
    packet = recording.packet(500)
    packet.interned_data.gpu_specifications.add(iid=4, name="gemm")
    stage = packet.gpu_render_stage_event
    stage.duration, stage.gpu_id, stage.hw_queue_iid, stage.stage_iid, stage.submission_id = 30, 2, 6, 4, 11
    row = dict(read_trace(recording.write(tmp_path / "x")).kernels.iloc[0])
    assert (row["name"], row["start_ns"], row["duration_ns"]) == ("gemm", 500, 30)
    assert (row["device"], row["stream"], row["correlation"]) == (2, 6, 11)


def test_clocks_that_add_up(tmp_path: Path) -> None:
    recording = Recording()
    packet = recording.packet()
    packet.trace_packet_defaults.timestamp_clock_id = 64
    packet.trace_packet_defaults.track_event_defaults.track_uuid = STREAM
    packet.clock_snapshot.clocks.add(clock_id=64, timestamp=0, is_incremental=True, unit_multiplier_ns=1000)
    packet.clock_snapshot.clocks.add(clock_id=6, timestamp=1_000_000)
    for delta, kind in ((5, BEGIN), (2, END), (10, BEGIN), (1, END)):
        packet = recording.packet(delta)
        packet.track_event.type = kind
        if kind == BEGIN:
            packet.track_event.categories.append("kernel")
            packet.track_event.name = "k"
    rows = read_trace(recording.write(tmp_path / "x")).kernels
    assert list(rows["start_ns"]) == [1_005_000, 1_017_000] and list(rows["duration_ns"]) == [2000, 1000]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_packed_as_a_file(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "x"
    path.write_bytes(pack(rocprofv3().trace.SerializeToString()))
    assert len(read_trace(path).kernels) == 3


def test_packed_inside(tmp_path: Path) -> None:
    outer = proto.Trace()
    outer.packet.add(trusted_packet_sequence_id=1, timestamp=1)
    outer.packet.add().compressed_packets = zlib.compress(rocprofv3().trace.SerializeToString())
    path = tmp_path / "x"
    path.write_bytes(outer.SerializeToString())
    assert len(read_trace(path).kernels) == 3


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    recording = rocprofv3()
    recording.packet(90).previous_packet_dropped = 1
    stats = recording.packet(91).trace_stats.buffer_stats.add()
    stats.chunks_discarded = 4
    event = recording.packet(99).track_event
    event.type, event.track_uuid = BEGIN, STREAM
    warnings = read_trace(recording.write(tmp_path / "x")).warnings
    assert any("5 packets were lost while recording" in w and "--perfetto-buffer-size" in w for w in warnings)
    assert any("1 slices have no begin or no end" in w for w in warnings)


def test_B21_broken_utf8_in_a_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(rocprofv3().trace.SerializeToString().replace(b"_Z4gemmi.kd", b"_Z4gemm\xc3.kd"))
    assert list(read_trace(path).kernels["name"]) == ["a", "b", "_Z4gemm\ufffd"]


def test_a_cut_file_says_where(tmp_path: Path) -> None:
    path = rocprofv3().write(tmp_path / "x")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UnreadableTrace, match=r"ends in the middle of a packet \(at byte \d+\)"):
        read_trace(path)


def test_no_gpu_work(tmp_path: Path) -> None:
    recording = Recording()
    recording.slice("hip_api", "hipMalloc", 1, 2, THREAD)
    with pytest.raises(UnreadableTrace, match=r"without GPU work \(categories with slices: hip_api\)"):
        read_trace(recording.write(tmp_path / "x"))


@pytest.mark.parametrize(
    "head", [b"", b"\n", b"\n\n\n{}", b'\n{"traceEvents": []}', b"\n\x00", b"Kind,Agent_Id\n1,2\n"]
)
def test_texts_are_no_packets(head: bytes) -> None:
    assert not is_perfetto(head)

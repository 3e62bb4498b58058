"""Traces for viewers and tables: decoded again, they say what the analysis says."""

from __future__ import annotations

import csv as reader
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from literal_traces import AR, FUSED, FUSED_RUN, GEMM, SPLIT

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.export_chrome import chrome
from fusionscope.analysis.export_perfetto import perfetto
from fusionscope.analysis.export_tables import csv, tables
from fusionscope.analysis.texts import seen
from fusionscope.analysis.tracks import rank_tracks

Made = Callable[..., Analysed]
#: The third launch starts before the second ends, as with programmatic dependent launch.
OVERLAPPING = [(GEMM, 0, 1_000), (AR, 1_100, 500), (GEMM, 1_400, 700), ("<script>", 2_500, 100, 9)]


def test_slices_of_a_track_never_overlap_and_none_is_lost(made: Made) -> None:
    shown = rank_tracks(made([OVERLAPPING] * 2))
    names = [track.name for track in shown.tracks if track.kind == "launches"]
    assert names == ["stream 7", "stream 7 (2)", "stream 9"]
    for track in shown.tracks:
        assert all(a.end_ns <= b.start_ns for a, b in zip(track.slices, track.slices[1:], strict=False))
    assert sum(len(t.slices) for t in shown.tracks if t.kind == "launches") == 8


def test_tracks_carry_boundaries_sites_gaps_and_roles(made: Made) -> None:
    shown = rank_tracks(made([SPLIT] * 2))
    by_name = {track.name: track for track in shown.tracks}
    assert set(by_name) == {"ar_norm", "stream 7", "gaps"}
    sites = by_name["ar_norm"].slices
    assert [(s.name, s.start_ns, s.duration_ns) for s in sites[:2]] == [
        ("ar_norm:residual", 10_100, 5_100), ("ar_norm:residual", 25_400, 5_100),
    ]  # fmt: skip
    assert [s.facts["role"] for s in by_name["stream 7"].slices[:3]] == ["gemm", "all_reduce", "residual_rms_norm"]
    run = made([SPLIT] * 2)
    gap = sum(s.duration_ns for s in by_name["gaps"].slices)
    assert gap == int((run.forward.span - run.forward.busy_time).sum()) == 1_000


def decoded(data: bytes) -> tuple[dict[int, Any], list[Any]]:
    """Track descriptors by uuid, and the track events in order."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    trace.ParseFromString(data)
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    return tracks, [packet for packet in trace.packet if packet.HasField("track_event")]


def test_a_perfetto_trace_decodes_to_the_same_slices(made: Made) -> None:
    runs = [made([OVERLAPPING] * 2), made([FUSED_RUN] * 3)]
    shown = [rank_tracks(run) for run in runs]
    tracks, events = decoded(perfetto(shown))
    processes = [t for t in tracks.values() if t.HasField("process")]
    assert [t.process.process_name for t in processes] == ["rank 0: ", "rank 0: "]
    open_slices: dict[int, Any] = {}
    found: dict[int, list[tuple[Any, ...]]] = {}
    for packet in events:
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_slices, "slices of a track overlap"
            open_slices[event.track_uuid] = packet
        else:
            first = open_slices.pop(event.track_uuid)
            notes = {n.name: n.string_value or n.int_value for n in first.track_event.debug_annotations}
            found.setdefault(event.track_uuid, []).append(
                (first.track_event.name, first.timestamp, packet.timestamp, notes)
            )
    assert not open_slices
    expected = [
        (track.name, [(s.name, s.start_ns, s.end_ns, {k: v for k, v in s.facts.items() if v not in ("", -1)})
                      for s in track.slices])
        for one in shown for track in one.tracks
    ]  # fmt: skip
    assert [(tracks[uuid].name, slices) for uuid, slices in found.items()] == expected
    assert {tracks[t.parent_uuid].process.process_name for t in tracks.values() if t.parent_uuid} == {"rank 0: "}


def test_a_chrome_trace_has_the_same_times(made: Made) -> None:
    run = made([SPLIT] * 2)
    document = chrome([rank_tracks(run)])
    events: list[Any] = document["traceEvents"]  # type: ignore[assignment]
    launches = [event for event in events if event["ph"] == "X" and event["cat"] == "launches"]
    assert [round(event["dur"] * 1000) for event in launches] == run.forward.duration.ravel().tolist()
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"ar_norm", "stream 7", "gaps"}


def test_tables_hold_every_launch_site_and_gap(made: Made) -> None:
    run = made([SPLIT] * 3)
    found = tables(run)
    assert {name: len(frame) for name, frame in found.items()} == {"launches": 18, "sites": 6, "gaps": 15, "kernels": 3}
    launches = found["launches"]
    assert launches["duration_ns"].sum() == int(run.forward.duration.sum())
    assert launches["site"].isna().sum() == 6 and pd.api.types.is_integer_dtype(launches["layer"])
    assert set(launches.loc[launches["boundary"].notna(), "boundary"]) == {"ar_norm"}


@pytest.mark.parametrize("nasty", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n=cmd|' /C calc'!A0"])
def test_no_cell_of_a_csv_begins_a_formula(made: Made, nasty: str) -> None:
    frames = tables(made([[(nasty, 0, 5), (FUSED, 10, 5)]] * 2))
    for frame in frames.values():
        rows = list(reader.reader(io.StringIO(csv(frame), newline="")))
        assert not any(cell.lstrip().startswith(("=", "+", "@")) for row in rows for cell in row)
        assert not any(cell.lstrip().startswith("-") and not cell.lstrip("-").isdigit() for row in rows for cell in row)
    assert nasty in "\n".join(cell for frame in frames.values() for cell in map(str, np.ravel(frame.to_numpy(object))))
    kept = list(reader.reader(io.StringIO(csv(frames["launches"]), newline="")))
    assert any(cell == f"'{seen(nasty)}" for row in kept for cell in row)

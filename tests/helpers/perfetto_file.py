"""Perfetto traces, built from packets as rocprofv3 and others write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

BEGIN, END = 1, 2
PROCESS, STREAM, THREAD = 2**63 + 11, 2**63 + 12, 2**63 + 13


class Recording:
    """Packets of one writer, with names interned as the SDK does."""

    def __init__(self) -> None:
        self.trace = proto.Trace()
        self.names: dict[tuple[str, str], int] = {}
        first = self.packet()
        first.sequence_flags = 1
        first.trace_packet_defaults.timestamp_clock_id = 6

    def packet(self, time: int | None = None) -> Any:
        found = self.trace.packet.add(trusted_packet_sequence_id=7, trusted_pid=1)
        if time is not None:
            found.timestamp = time
        return found

    def track(self, uuid: int, parent: int = 0, pid: int = 0, tid: int = 0) -> None:
        track = self.packet().track_descriptor
        track.uuid, track.parent_uuid = uuid, parent
        if tid:
            track.thread.pid, track.thread.tid = pid, tid
        elif pid:
            track.process.pid = pid

    def iid(self, packet: Any, kind: str, text: str) -> int:
        if (kind, text) not in self.names:
            self.names[kind, text] = len(self.names) + 1
            getattr(packet.interned_data, kind).add(iid=self.names[kind, text], name=text)
        return self.names[kind, text]

    def slice(self, category: str, name: str, start: int, end: int, track: int = STREAM, **notes: int | str) -> None:
        packet = self.packet(start)
        event = packet.track_event
        event.type, event.track_uuid = BEGIN, track
        event.category_iids.append(self.iid(packet, "event_categories", category))
        event.name_iid = self.iid(packet, "event_names", name)
        for key, value in notes.items():
            note = event.debug_annotations.add(name_iid=self.iid(packet, "debug_annotation_names", key))
            if isinstance(value, str):
                note.string_value = value
            else:
                note.uint_value = value
        last = self.packet(end).track_event
        last.type, last.track_uuid = END, track

    def dispatch(self, name: str, start: int, end: int, correlation: int) -> None:
        self.slice(
            "kernel_dispatch", name, start, end, begin_ns=start, end_ns=end, corr_id=correlation, agent=4, stream_ID=2
        )

    def write(self, path: Path) -> Path:
        path.write_bytes(self.trace.SerializeToString())
        return path


def rocprofv3() -> Recording:
    recording = Recording()
    recording.track(PROCESS, pid=55)
    recording.track(STREAM, PROCESS)
    recording.track(THREAD, pid=55, tid=77)
    recording.slice("hip_api", "hipLaunchKernel", 5, 6, THREAD, corr_id=7)
    recording.slice("hip_api", "hipGraphLaunch", 7, 8, THREAD, corr_id=8)
    recording.slice("marker_api", "decode step", 3, 40, THREAD)
    recording.dispatch("_Z4gemmi.kd", 63855948165371, 63855948165372, 7)
    recording.dispatch("a", 20, 25, 8)
    recording.dispatch("b", 25, 26, 8)
    return recording
